"""Reads YAML safely, with one clear line for anything wrong with it."""

from typing import Any

import yaml

from mabert.files.reading import DEEPEST, DIGITS, TOO_DEEP, too_long

MOST = 100_000
"""Most values of a text once its aliases are expanded."""


def parse_yaml(text: str, where: str) -> Any:
    """Parses YAML by a safe loader.

    Args:
        text: The text.
        where: Origin of the text, for messages.

    Raises:
        ValueError: If it is not YAML, repeats a key, contains itself or has too many values or levels; names the line.
    """
    loader = None
    try:
        loader = _Loader(text)  # may already refuse characters
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" in line {mark.line + 1}" if mark else ""
        raise ValueError(f"{where} is not YAML: {_shortened(error.problem or error.context)}{line}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{where} is not YAML: {_shortened(error)}") from error
    finally:
        if loader is not None:
            loader.dispose()


def _shortened(told: object) -> str:
    return " ".join(str(told).split())[:200]


class _Loader(yaml.SafeLoader):
    """Refuses what cannot be meant: repeated keys, values that contain themselves, endless nesting and aliases."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.depth = 0
        self.sizes: dict[int, int] = {}  # of whole nodes, aliases expanded

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark = self.peek_event().start_mark
        if self.depth == DEEPEST:
            raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=mark)
        alias = isinstance(self.peek_event(), yaml.AliasEvent)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        if node is None:
            return node
        if alias and id(node) not in self.sizes:
            raise yaml.MarkedYAMLError(problem="an alias stands within what it is an alias of", problem_mark=mark)
        if not alias:
            self._measure(node)
        if self.sizes[id(node)] > MOST:
            raise yaml.MarkedYAMLError(problem=f"aliases make more than {MOST:,} values", problem_mark=mark)
        return node

    def _measure(self, node: yaml.Node) -> None:
        """Notes how many values a node has; refuses a repeated key."""
        inner: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            inner = node.value
        elif isinstance(node, yaml.MappingNode):
            inner = [each for pair in node.value for each in pair]
            lines: dict[tuple[str, str], int] = {}
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and (name := (key.tag, key.value)) in lines:
                    told = f"{key.value[:60]!r} stands in line {lines[name]} already, and again"
                    raise yaml.MarkedYAMLError(problem=told, problem_mark=key.start_mark)
                if isinstance(key, yaml.ScalarNode):
                    lines[key.tag, key.value] = key.start_mark.line + 1
        self.sizes[id(node)] = 1 + sum(self.sizes[id(each)] for each in inner)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if isinstance(node, yaml.ScalarNode) and len(node.value) > DIGITS and node.tag == "tag:yaml.org,2002:int":
            raise yaml.MarkedYAMLError(problem=too_long(node.value), problem_mark=node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (
            ValueError,
            ArithmeticError,
            LookupError,
            TypeError,
            AttributeError,
        ) as error:  # such as an impossible date
            raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from error
