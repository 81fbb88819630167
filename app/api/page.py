"""An OpenAPI document as one page of HTML, whole without a network: Litestar's own pages load scripts from afar."""

import html
from collections.abc import Iterator
from typing import Any

import msgspec

_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.3rem .6rem;border-top:
1px solid #ddd}pre,code{font-family:ui-monospace,monospace;font-size:.9em}pre{background:#f5f5f2;padding:.8rem;
overflow-x:auto}h2{margin-top:2.5rem}small{color:#666}"""


def page(document: dict[str, Any]) -> str:
    """An OpenAPI document as one HTML page."""
    parts = "\n".join(_operations(document))
    title = html.escape(f"{document['info']['title']} {document['info']['version']}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>"
        f'<p>The same for programs: <a href="/schema/openapi.json">/schema/openapi.json</a></p>{parts}</html>'
    )


def _operations(document: dict[str, Any]) -> Iterator[str]:
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>"
            yield f"<p>{html.escape(operation['summary'])}.</p>"
            if body := operation.get("requestBody"):
                content = body["content"]["application/json"]
                yield _fields(schemas[content["schema"]["$ref"].rpartition("/")[2]])
                for name, example in content["examples"].items():
                    shown = msgspec.json.format(msgspec.json.encode(example["value"])).decode()
                    yield f"<h3>{html.escape(name)}</h3><pre>{html.escape(shown)}</pre>"
            rows = "".join(
                f"<tr><td><code>{status}</code><td>{html.escape(response['description'])}"
                for status, response in operation["responses"].items()
            )
            yield f"<table><tr><th>status<th>when{rows}</table>"
    for name, described in schemas.items():
        if not name.endswith("Request"):
            yield f'<h2 id="{name}"><code>{name}</code></h2><p>{html.escape(described["description"])}</p>'
            yield _fields(described)


def _fields(described: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{name}</code><td><small>{html.escape(_kind(field))}</small>"
        f"<td>{html.escape(field.get('description', ''))}"
        for name, field in described["properties"].items()
    )
    return f"<table><tr><th>field<th>type<th>{rows}</table>"


def _kind(field: dict[str, Any]) -> str:
    if options := field.get("anyOf"):
        return " or ".join(kind for option in options if (kind := _kind(option)) != "null")
    if reference := field.get("$ref"):
        return str(reference.rpartition("/")[2])
    if "enum" in field:
        return " or ".join(map(str, field["enum"]))
    kind = str(field.get("type", "any"))
    if kind == "array":
        return f"list of {_kind(field['items'])}"
    low, high = field.get("minimum", field.get("exclusiveMinimum")), field.get("maximum")
    return (
        kind
        if low is None and high is None
        else f"{kind}, {'' if low is None else low}..{'' if high is None else high}"
    )
