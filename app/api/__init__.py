"""HTTP: routes, bodies in and out, errors, streams. With `app.asgi` the only code that imports litestar."""
