"""What the server is told: where it listens, what it may hold, and which networks it serves."""

from dataclasses import asdict, dataclass, field
from typing import Any

from gpldla.data.pixel_budget import VARIABLE, max_pixels
from gpldla.utils.errors import UserError, require_count

DAY = 24 * 3600
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Limits:
    """Bounds on what one request, one task and the whole server may take; all are at least 1.

    upload_bytes:    of the body of a request that is a form, with pictures or a classifier
    json_bytes:      of any other body: a small one can hold millions of values, each of which takes time
    pixels:          of one picture; those of all that are decoded at a time are bounded in `pixel_budget`
    bytes_in_flight: of all bodies that are being received or waited on, in sum
    items:           examples of one task
    items_per_request: pictures or texts of one request
    classes, tasks:  classes of one task, and tasks of the server
    text_characters: of one text
    waiting:         pictures or texts that wait for the network; with more, a request is answered 429
    lifetime_s:      seconds after its last change after which a task is deleted
    """

    upload_bytes: int = 32 << 20
    json_bytes: int = 4 << 20
    pixels: int = 50_000_000
    bytes_in_flight: int = 256 << 20
    items: int = 2_000
    items_per_request: int = 256
    classes: int = 200
    tasks: int = 1_000
    text_characters: int = 10_000
    waiting: int = 512
    lifetime_s: int = 30 * DAY

    def __post_init__(self) -> None:
        require_count(**asdict(self))
        if self.pixels > max_pixels():
            raise UserError(
                f"A picture may have {self.pixels} pixels, and {VARIABLE} allows {max_pixels()}; lower the"
                " limit or raise the variable."
            )


@dataclass(frozen=True)
class Settings:
    """Everything that `gpldla serve` is told.

    file:          a classifier to serve read-only, instead of tasks
    database:      a URL of SQLAlchemy; None: in memory
    image_model, text_model: names as of `gpldla fit --model`; None: not served
    token:         what a client has to send as a bearer token; None: nobody has to
    allowed_hosts: names in the header Host that are answered, besides those of this machine
    allowed_origins: origins of other sites whose pages may call the server
    thumbnails:    whether small copies of pictures are kept
    """

    file: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    database: str | None = None
    image_model: str | None = "efficientnet-lite0"
    text_model: str | None = "all-minilm-l6-v2"
    device: str = "auto"
    token: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    thumbnails: bool = True
    limits: Limits = field(default_factory=Limits)

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can connect."""
        return self.host in LOOPBACK

    def as_json(self) -> dict[str, Any]:
        """Return the settings as JSON, for the processes of several workers."""
        return asdict(self)

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> "Settings":
        """Return the settings that `as_json` has written."""
        hosts, origins = tuple(facts["allowed_hosts"]), tuple(facts["allowed_origins"])
        limits = Limits(**facts["limits"])
        return cls(**{**facts, "allowed_hosts": hosts, "allowed_origins": origins, "limits": limits})
