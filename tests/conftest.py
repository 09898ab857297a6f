"""What concerns every test: those of one group stay together."""

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let tests of one `xdist_group` run in one process, one after another.

    pytest-xdist 3.8 writes the group where pytest 9.2 does not look for it (pytest-xdist #1386), so that what a group
    shares is made in every process.
    """
    if not config.getoption("loadgroup", default=False):
        return
    for item in items:
        groups = sorted({str(mark.args[0]) for mark in item.iter_markers("xdist_group")})
        if groups and not item.nodeid.endswith(suffix := f"@{'_'.join(groups)}"):
            node_id = item._id  # noqa: SLF001  # see above
            item._id = node_id.parse(item.nodeid + suffix)  # noqa: SLF001
