"""Any sequence of operations on stored values, compared with a dictionary of the same values."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from samples import sample

from mcp_mirror import Reply, SyncMirror
from mcp_mirror.errors import MirrorError

OWNERS: Final = ("ann", "bob")
OTHER: Final = {"ann": "bob", "bob": "ann"}

NUMBERS: Final = ["0", "-0", "1.0", "1e400", "1E+2", "12345678901234567890", "3.00000000000000000001"]
KEYS: Final = ["rows", "a/b", "m~n", "~1", "", "0", "-", "x y", "a[0]", "é", '"', "\n", "\0", "\u2028"]
scalars = (
    st.sampled_from(NUMBERS).map(lambda digits: ("number", digits))
    | st.sampled_from(["", "1.0", "Grüße", "😀", "\0", "\u2028", "\r\n", "\x1b[0m", 'a "b" \\', "x" * 3000])
    | st.sampled_from([True, False, None])
)


def nest(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    deep = st.tuples(inner, st.integers(20, 150)).map(lambda one: write_levels(*one))
    return st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4) | deep


def write_levels(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value]
    return value


containers = nest(st.recursive(scalars, nest, max_leaves=8))
objects = st.dictionaries(st.sampled_from(KEYS), st.recursive(scalars, nest, max_leaves=8), min_size=2, max_size=4)
patches = st.dictionaries(st.sampled_from(KEYS), st.none() | scalars | objects, min_size=1)


def write(value: Any) -> str:
    """JSON text of a value; a number is a tuple with its digits."""
    if isinstance(value, tuple):
        return str(value[1])
    if isinstance(value, list):
        return f"[{','.join(map(write, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{write(part)}" for key, part in value.items()) + "}"
    return json.dumps(value)


def read(text: str) -> Any:
    return json.loads(text, parse_int=as_number, parse_float=as_number)


def as_number(digits: str) -> tuple[str, str]:
    return ("number", digits)


def parts(value: Any, pointer: str = "") -> Iterator[tuple[str, Any]]:
    """The pointer and the value of each part, the whole value first."""
    yield pointer, value
    named = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in named:
        yield from parts(part, f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}")


def merge(target: Any, patch: Any) -> Any:
    """The algorithm of RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, part in patch.items():
        if part is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), part)
    return merged


class Memory(RuleBasedStateMachine):
    """Two owners and their values, the oldest first."""

    def __init__(self, mirror: SyncMirror, *, is_kept: bool) -> None:
        super().__init__()
        self.mirror = mirror
        self.is_kept = is_kept
        self.values: dict[str, dict[str, Any]] = {owner: {} for owner in OWNERS}

    def call(self, owner: str, tool: str, **arguments: Any) -> Reply:
        return self.mirror.call(tool, arguments, namespace=owner)

    def hear(self, owner: str, path: str) -> Any:
        """The value that an upstream receives for a path."""
        reply = self.call(owner, "hear_mirrored", x=["first", {"deep": path}])
        assert not reply.is_error, reply
        return read(reply.text)["params"]["arguments"]["x"][1]["deep"]

    def add(self, owner: str, reply: Reply, value: Any) -> None:
        assert not reply.is_error, reply
        assert reply.path is not None
        self.values[owner][reply.path] = value
        assert self.hear(owner, reply.path) == value

    @rule(owner=st.sampled_from(OWNERS), value=objects)
    def store_an_object(self, owner: str, value: Any) -> None:
        result = f'{{"content":[],"structuredContent":{write(value)}}}'
        self.add(owner, self.call(owner, "say_mirrored", result=result), value)

    @rule(owner=st.sampled_from(OWNERS), value=containers)
    def store_json_text(self, owner: str, value: Any) -> None:
        result = json.dumps({"content": [{"type": "text", "text": write(value)}]})
        self.add(owner, self.call(owner, "say_mirrored", result=result), value)

    @rule(owner=st.sampled_from(OWNERS), text=st.sampled_from(["a", "Grüße\n😀", "\0\u2028", "1.0", "line\r\n" * 9000]))
    def store_a_text(self, owner: str, text: str) -> None:
        result = json.dumps({"content": [{"type": "text", "text": text}]})
        self.add(owner, self.call(owner, "say_mirrored", result=result), text)

    @rule(owner=st.sampled_from(OWNERS), value=containers, times=st.sampled_from([1, 9]))
    def put(self, owner: str, value: Any, times: int) -> None:
        for _ in range(times):
            reply = self.mirror.call("memory_put", f'{{"value":{write(value)}}}', namespace=owner)
            self.add(owner, reply, value)

    def draw(self, data: st.DataObject) -> tuple[str, str, Any]:
        owner = data.draw(st.sampled_from([owner for owner in OWNERS if self.values[owner]]))
        path = data.draw(st.sampled_from(list(self.values[owner])))
        return owner, path, self.values[owner][path]

    has_values = precondition(lambda self: any(self.values.values()))

    @has_values
    @rule(data=st.data())
    def pass_a_part_on(self, data: st.DataObject) -> None:
        owner, path, value = self.draw(data)
        pointer, part = data.draw(st.sampled_from(list(parts(value))))
        assert self.hear(owner, path + pointer) == part
        assert self.mirror.read(path + pointer, namespace=owner) == json.loads(write(part))

    @has_values
    @rule(data=st.data())
    def retrieve(self, data: st.DataObject) -> None:
        owner, path, value = self.draw(data)
        reply = self.call(owner, "retrieve_final_answer_from_memory", memory_path=path)
        assert not reply.is_error, reply
        assert reply.text == value if isinstance(value, str) else read(reply.text) == value

    @has_values
    @rule(data=st.data(), patch=patches)
    def merge_a_patch(self, data: st.DataObject, patch: Any) -> None:
        owner, path, value = self.draw(data)
        reply = self.mirror.call(
            "memory_edit", f'{{"memory_path":{json.dumps(path)},"merge":{write(patch)}}}', namespace=owner
        )
        if isinstance(value, dict):
            self.add(owner, reply, merge(value, patch))
        else:
            assert reply.is_error

    @has_values
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        owner, path, _ = self.draw(data)
        assert not self.call(owner, "memory_forget", memory_path=path).is_error
        del self.values[owner][path]
        self.find_nothing(owner, path)

    @has_values
    @rule(data=st.data())
    def use_a_path_of_another_owner(self, data: st.DataObject) -> None:
        owner, path, _ = self.draw(data)
        self.find_nothing(OTHER[owner], path)

    def find_nothing(self, owner: str, path: str) -> None:
        assert self.call(owner, "hear_mirrored", x=path).is_error
        assert self.call(owner, "memory_read", memory_path=path).is_error
        assert self.call(owner, "memory_forget", memory_path=path).is_error
        with pytest.raises(MirrorError):
            self.mirror.read(path, namespace=owner)

    @rule(owner=st.sampled_from(OWNERS))
    def list_all_pages(self, owner: str) -> None:
        listed: list[str] = []
        while True:
            after = {"after": listed[-1]} if listed else {}
            reply = self.call(owner, "memory_list", **after)
            listed += [line.split('"')[1] for line in reply.text.splitlines() if line.startswith('"')]
            if "next: after=" not in reply.text:
                break
        assert listed == list(reversed(self.values[owner]))

    @precondition(lambda self: self.is_kept)
    @rule(is_due=st.sampled_from([False, False, True]))
    def open_again(self, *, is_due: bool) -> None:
        if not is_due:
            return
        self.mirror.__exit__(None, None, None)
        self.mirror.__enter__()

    def teardown(self) -> None:
        for owner in OWNERS:
            for path, value in self.values[owner].items():
                assert self.hear(owner, path) == value
            assert self.mirror.clear(namespace=owner) == len(self.values[owner])


@pytest.mark.parametrize("store", sample(["memory", "disk"], lambda store: store == "disk"))
def test_the_memory_behaves_like_a_dictionary(store: str, raw: Any, tmp_path: Path) -> None:
    upstream = raw(overrides={"hear": {"capture": "never"}, "say": {"capture": "always"}})
    on_disk = {"kind": "disk", "path": str(tmp_path / "store"), "fsync": False}
    mirror = SyncMirror(
        upstreams={"upstreams": {"raw": upstream}, "memory_tools": "all"},
        store=on_disk if store == "disk" else "memory",
    )

    class OpenMemory(Memory):
        def __init__(self) -> None:
            super().__init__(mirror, is_kept=store == "disk")

    with mirror:
        run_state_machine_as_test(
            OpenMemory, settings=settings(max_examples=settings().max_examples // 2, stateful_step_count=12)
        )
