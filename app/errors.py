"""What can go wrong, as data.

    SegueError
    ├── RequestError            the request as it was sent cannot be served: says which field, and why
    │   ├── InvalidRequest
    │   ├── ContextLengthExceeded
    │   └── ModelNotFound
    ├── Unauthorized            no key, or a wrong one
    ├── Overloaded              the waiting line is full
    ├── Unavailable             the server is stopping, or its engine has died
    │   ├── TimedOut            the request took longer than --request-timeout
    │   └── Unloadable          the model that it names could not be loaded
    ├── GenerationFailed        a fault of the server while it served this request
    ├── NoRoom                  the backend found no free cells: an event for the scheduler, never shown
    └── StartError              the server, or a command, cannot start: one line, with the remedy
        ├── SettingsError
        ├── ModelError
        └── SourceError         a model cannot be had: its source, the network, the disk

Errors know nothing of HTTP: `app.api.errors` maps them to statuses.
"""


class SegueError(Exception):
    """The root of everything that segue raises on purpose."""

    code: str | None = None

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RequestError(SegueError):
    """A request that cannot be served as it is; `param` is the field at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequest(RequestError):
    """A value, or the body itself, is not what the API takes."""


class ContextLengthExceeded(RequestError):
    """Prompt and completion together are longer than the context."""

    code = "context_length_exceeded"


class ModelNotFound(RequestError):
    """The request names a model that is not served here."""

    code = "model_not_found"


class Unauthorized(SegueError):
    """The request carries none of the server's keys."""

    code = "invalid_api_key"


class Overloaded(SegueError):
    """The waiting line is full; nothing was queued."""

    code = "server_overloaded"


class Unavailable(SegueError):
    """No request can be taken now: the server stops, or its engine is gone."""

    code = "shutting_down"


class TimedOut(Unavailable):
    """The request took longer than the settings allow; nothing of it goes on."""

    code = "timeout"


class Unloadable(Unavailable):
    """The request names a model that could not be loaded; it may be tried again."""

    code = "model_not_loaded"


class GenerationFailed(SegueError):
    """The engine met a fault while it worked on this request."""


class NoRoom(SegueError):
    """The backend's memory holds no free cells for a batch; the memory is as it was before."""


class StartError(SegueError):
    """The server, or a command, cannot start; the message is one line and names the remedy."""


class SettingsError(StartError):
    """A setting has a wrong name, type or value."""


class ModelError(StartError):
    """The model file cannot be loaded."""


class SourceError(StartError):
    """A model cannot be had from where it should come, or cannot be kept."""
