"""JSON Schema, as much of it as the API's description uses: whether a value fits, and values that do."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

Schema = Mapping[str, Any]

KINDS: dict[str, Any] = {
    "null": type(None), "string": str, "integer": int, "number": float | int, "boolean": bool, "array": list,
    "object": dict,
}  # fmt: skip


class Schemas:
    """The schemas of a description, which may name one another."""

    def __init__(self, document: Any) -> None:
        self._named: Mapping[str, Schema] = document["components"]["schemas"]

    def fits(self, value: Any, schema: Schema) -> bool:
        """Whether a value is as described: every property of an object is known, and every required one there."""
        if "$ref" in schema:
            return self.fits(value, self._resolved(schema))
        if "anyOf" in schema:
            return any(self.fits(value, option) for option in schema["anyOf"])
        if "enum" in schema:
            return value in schema["enum"]
        if "const" in schema:
            return bool(value == schema["const"])
        if not isinstance(value, KINDS[schema["type"]]):
            return False
        if schema["type"] == "array":
            return all(self.fits(item, schema["items"]) for item in value)
        if schema["type"] == "object" and "properties" in schema:
            known = schema["properties"]
            return set(schema.get("required", ())) <= set(value) <= set(known) and all(
                self.fits(item, known[key]) for key, item in value.items()
            )
        return True

    def values(self, schema: Schema) -> SearchStrategy[Any]:
        """Values that are as described, small ones."""
        if "$ref" in schema:
            return self.values(self._resolved(schema))
        if "anyOf" in schema:
            return st.one_of([self.values(option) for option in schema["anyOf"]])
        match schema["type"]:
            case "null":
                return st.none()
            case "boolean":
                return st.booleans()
            case "integer":
                return st.integers(schema.get("minimum"), schema.get("maximum"))
            case "number":
                return st.floats(
                    schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum"),
                    exclude_min="exclusiveMinimum" in schema, allow_nan=False, allow_infinity=False,
                )  # fmt: skip
            case "string":
                return st.text(max_size=12)
            case "array":
                return st.lists(self.values(schema["items"]), max_size=4)
            case _:
                return self._objects(schema)

    def _objects(self, schema: Schema) -> SearchStrategy[Any]:
        if "properties" not in schema:
            return st.dictionaries(st.text(max_size=4), self.values(schema["additionalProperties"]), max_size=3)
        fields = {name: self.values(field) for name, field in schema["properties"].items()}
        required = {name: fields.pop(name) for name in schema.get("required", ())}
        return st.fixed_dictionaries(required, optional=fields)

    def _resolved(self, schema: Schema) -> Schema:
        return self._named[schema["$ref"].rpartition("/")[2]]
