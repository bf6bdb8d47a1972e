"""Reads YAML safely, with one clear line for anything wrong with it."""

from typing import Any

import yaml


def parse_yaml(text: str, where: str) -> Any:
    """Parses YAML by a safe loader. Raises a ValueError that says where it is from if it is not YAML, repeats a key, or
    has more digits or levels than Python reads."""
    loader = None
    try:
        loader = _Loader(text)  # may already refuse characters
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" in line {mark.line + 1}" if mark else ""
        raise ValueError(f"{where} is not YAML: {_shortened(error.problem or error.context)}{line}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{where} is not YAML: {_shortened(error)}") from error
    finally:
        if loader is not None:
            loader.dispose()


def _shortened(value: object) -> str:
    return " ".join(str(value).split())[:200]


class _Loader(yaml.SafeLoader):
    """Refuses repeated keys, and names the line of a value that cannot be made."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (name := (key.tag, key.value)) in lines:
                problem = f"{key.value[:60]!r} stands in line {lines[name]} already, and again"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                lines[key.tag, key.value] = key.start_mark.line + 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, ArithmeticError, LookupError, TypeError, AttributeError) as error:
            # such as an impossible date
            raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from error
