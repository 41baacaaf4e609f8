"""Parses YAML with limits, because a short text can be nested deeply, refer to itself, or expand without end; writes YAML."""

from collections import Counter
from decimal import Decimal
from fractions import Fraction
from typing import Any, NoReturn

import yaml

_MOST_NESTED = 50
_MOST_VALUES = 50_000  # three thousand sources, two seconds to parse; an alias counts as the values it refers to
_MOST_DIGITS = 100


def parse(text: str) -> Any:
    """Parse a YAML text. Raises yaml.YAMLError, or whatever a tag with an invalid value raises."""
    return yaml.load(text, _Loader)


def _joined(text: str) -> str:
    """Join surrogate pairs: JSON writes a character above 0xffff as two escapes, which YAML reads as two characters."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _refuse(problem: str, node: yaml.Node | yaml.Event) -> NoReturn:
    mark: Any = node.start_mark  # Any, because its type depends on whether PyYAML has its C library
    raise yaml.constructor.ConstructorError(None, None, problem, mark)


class _Loader(yaml.SafeLoader):
    """The safe loader, which also rejects repeated keys, and values that are nested too deeply, too many or too long."""

    def __init__(self, text: str):
        super().__init__(text)
        self._levels = 0
        self._sizes: dict[yaml.Node, int] = {}  # number of values in a node, with aliases expanded

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._levels += 1
        if self._levels > _MOST_NESTED:
            _refuse(f"expected at most {_MOST_NESTED} levels, found more", self.peek_event())
        is_alias = self.check_event(yaml.AliasEvent)
        node: Any = super().compose_node(parent, index)
        self._levels -= 1
        if not is_alias:
            self._sizes[node] = 1 + sum(self._sizes[part] for part in _parts(node))
        elif node not in self._sizes:
            _refuse("expected a value that does not contain itself, found an alias of an enclosing value", node)
        if self._sizes[node] > _MOST_VALUES:
            _refuse(f"expected at most {_MOST_VALUES:,} values, found more", node)
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<")
        if twice := sorted(key for key, number in keys.items() if number > 1):
            _refuse(f"keys are repeated: {twice[:5]}", node)
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: Any) -> Any:
        value = super().construct_scalar(node)
        return _joined(value) if isinstance(value, str) else value

    def construct_number(self, node: Any) -> Any:
        if len(str(node.value)) > _MOST_DIGITS:
            _refuse(f"expected a number of at most {_MOST_DIGITS} digits, found {len(str(node.value)):,}", node)
        integer = node.tag.endswith(":int")
        return self.construct_yaml_int(node) if integer else self.construct_yaml_float(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_number)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_number)


def dump(fields: dict[str, Any]) -> str:
    """Fields as YAML: a line per field, with inner lists and mappings in one line each. Numbers are written exactly."""
    text: str = yaml.dump(
        fields, Dumper=_Dumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120
    )
    return text


class _Dumper(yaml.SafeDumper):
    """The safe dumper, which also writes a Decimal as a number and a Fraction as p/q."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_exact(self, value: Decimal) -> yaml.Node:
        text = f"{value:f}"
        return self.represent_scalar(f"tag:yaml.org,2002:{'float' if '.' in text else 'int'}", text)

    def represent_ratio(self, value: Fraction) -> yaml.Node:
        return self.represent_str(str(value))


_Dumper.add_representer(Decimal, _Dumper.represent_exact)
_Dumper.add_representer(Fraction, _Dumper.represent_ratio)


def _parts(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
