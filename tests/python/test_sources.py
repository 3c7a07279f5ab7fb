"""What compilers do not say about sources that are compiled apart."""

import collections
import re
from pathlib import Path

OPS = Path(__file__).parents[2] / "ops"
NAMESPACE = re.compile(r"^(?:inline )?namespace ?([\w:]*) ?\{")
NAMESPACE_END = re.compile(r"^\}  // namespace")
DEFINITION = re.compile(r"^(?:struct|class|enum class) (\w+)(?: final)?(?: : .*)? ?\{")


def types_defined_in(source: Path):
    """(qualified name, line number) of types that other sources see; indented ones are members."""
    namespaces = []
    for number, line in enumerate(source.read_text().splitlines(), start=1):
        if namespace := NAMESPACE.match(line):
            namespaces.append(namespace[1])
        elif NAMESPACE_END.match(line):
            namespaces.pop()
        elif (definition := DEFINITION.match(line)) and "" not in namespaces:
            yield "::".join([*namespaces, definition[1]]), number


def test_a_type_has_one_definition():
    """Two of a name in two sources are no error to a compiler or a linker, which keeps one of each template over them:
    the launch of a kernel once read 240 bytes of 64."""
    places = collections.defaultdict(list)
    sources = [source for ending in ("h", "cpp", "hip") for source in sorted(OPS.rglob(f"*.{ending}"))]
    for source in sources:
        for name, line in types_defined_in(source):
            places[name].append(f"{source.relative_to(OPS)}:{line}")
    assert len(places) > 100
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
