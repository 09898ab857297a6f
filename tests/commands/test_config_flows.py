"""The configuration of labels and flows: keys become settings, and rules without effect are errors."""

import re

import pytest
from tests.commands.conftest import Load

from mcp_mirror.errors import ConfigError
from mcp_mirror.security.flows import build_flows
from mcp_mirror.settings.labels import WORDS, Accepts, FlowRule, FlowsPolicy, PlacePolicy

WHOLE = """
upstreams:
  crm:
    command: x
    labels: {integrity: trusted, confidentiality: secret}
    accepts: {integrity: untrusted, confidentiality: open, sources: [web, "zone:east"]}
    zone: east
    may_lower: own
  web: {command: x}
  off: {command: x, enabled: false}
flows:
  levels: [open, secret]
  default: allow
  allow: [crm->web, " zone:east -> model "]
  deny: ["off -> *", "functions -> files", "zone:local -> web", "zone:web -> crm"]
  on_refusal: ask
  model: {labels: {confidentiality: open}, accepts: {integrity: trusted, sources: crm}}
  files: {zone: east, accepts: {confidentiality: open}}
"""


def test_a_whole_configuration_is_read(load: Load) -> None:
    config = load(WHOLE)
    crm, web = config.upstreams
    assert crm.place == PlacePolicy(
        "trusted", "secret", Accepts("untrusted", "open", ("web", "zone:east")), zone="east", may_lower="own"
    )
    assert web.place == PlacePolicy()
    assert config.flows == FlowsPolicy(
        levels=("open", "secret"),
        default="allow",
        allow=(FlowRule("crm", "web"), FlowRule("zone:east", "model")),
        deny=(
            FlowRule("off", "*"),
            FlowRule("functions", "files"),
            FlowRule("zone:local", "web"),
            FlowRule("zone:web", "crm"),
        ),
        on_refusal="ask",
        model=PlacePolicy(None, "open", Accepts("trusted", None, ("crm",))),
        files=PlacePolicy(None, None, Accepts(None, "open"), zone="east"),
    )
    assert config.warnings == ()


@pytest.mark.parametrize("section", ["", "flows:", "flows: {}", "flows: {model: {accepts: {}, labels: }, files: }"])
def test_absent_keys_have_their_defaults(load: Load, section: str) -> None:
    assert load(f"upstreams: {{a: {{command: x}}}}\n{section}").flows == FlowsPolicy()


def test_a_list_of_flows_is_a_list_of_allowed_flows(load: Load) -> None:
    flows = load("upstreams: {a: {command: x}, b: {command: x}}\nflows: [a -> b, b -> files]").flows
    assert flows == FlowsPolicy(allow=(FlowRule("a", "b"), FlowRule("b", "files")))


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        ("flows: {levels: [one]}", "flows.levels"),
        ("flows: {levels: [one, Two]}", r"flows.levels.*: expected a level"),
        ("flows: {levels: [one, one]}", "flows.levels: expected each level once"),
        (
            "flows: {deny: [crm -> maill]}",
            "unknown upstream 'maill'; expected one of crm, files, functions, model, or a glob",
        ),
        (
            "upstreams: {files: {command: x}}\nflows: [crm -> mail]",
            r"unknown upstream 'crm'; expected one of \[f\]iles, functions, local files, model, or a glob",
        ),
        ("flows: {allow: ['zone:west -> crm']}", "unknown zone 'west'; expected a place with a 'zone'"),
        ("flows: [crm to crm]", "expected a flow such as 'crm -> mail'"),
        ("flows: [{a: b}]", "expected a flow such as 'crm -> mail'"),
        ("flows: {on_refusal: never}", "flows.on_refusal: expected one of error, ask"),
        ("flows: {default: [allow]}", "flows.default: expected one of allow, deny"),
        ("flows: {xyz: []}", "flows.xyz: unknown key; expected one of levels, default"),
        ("flows: {model: {zone: a}}", "flows.model.zone: unknown key; did you mean 'upstreams.*.zone' or"),
        ("flows: {model: {accepts: {sources: [web]}}}", "flows.model.accepts.sources.*unknown upstream 'web'"),
        (
            "flows: {model: {accepts: {confidentiality: secret}}}",
            "expected one of 'flows.levels': public, internal",
        ),
        (
            "upstreams: {crm: {command: x, labels: {confidentiality: secret}}}",
            "crm.labels.confidentiality: expected one",
        ),
        ("upstreams: {crm: {command: x, labels: {integrity: maybe}}}", "expected one of trusted, untrusted"),
        ("upstreams: {crm: {command: x, zone: 'a b'}}", "crm.zone: expected a zone"),
        ("upstreams: {crm: {command: x, may_lower: everything}}", "expected one of nothing, own, all"),
        ("upstreams: {crm: {command: x, accepts: {from: crm}}}", "unknown key"),
    ],
)
def test_an_error_names_the_key_of_the_flow_setting(load: Load, keys: str, wrong: str) -> None:
    text = keys if keys.startswith("upstreams") else f"upstreams: {{crm: {{command: x}}}}\n{keys}"
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert re.search(wrong, str(caught.value)), caught.value


@pytest.mark.parametrize("word", ["model", "files", "functions"])
def test_a_reserved_word_that_is_an_upstream_is_ambiguous(load: Load, word: str) -> None:
    """If the rule applied to another place than its author meant, it would not refuse the flow."""
    upstreams = f"upstreams: {{a: {{command: x}}, {word}: {{command: x}}}}\n"
    assert load(upstreams).warnings == ()
    ours, theirs = WORDS[word], f"[{word[0]}]{word[1:]}"
    with pytest.raises(ConfigError, match=r"flows\.deny\.0: .* is an upstream and a reserved word") as caught:
        load(f"{upstreams}flows: {{deny: ['a -> {word}']}}")
    assert f"'{theirs}'" in str(caught.value)
    assert f"'{ours}'" in str(caught.value)
    for side, refused, passed in ((ours, ours, word), (theirs, word, ours)):
        loaded = load(f"{upstreams}flows: {{deny: ['a -> {side}']}}")
        flows = build_flows(loaded, is_isolated=False)
        assert flows.refusal(flows.labels_of_place("a"), refused)
        assert not flows.refusal(flows.labels_of_place("a"), passed)
