"""The Lua scripts that the store runs, each with the name it is called by once the store knows it."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent / "lua"


@dataclass(frozen=True, slots=True)
class Script:
    text: str
    sha: str

    @classmethod
    def load(cls, *files: str) -> "Script":
        text = "\n".join((_FOLDER / file).read_text(encoding="utf-8") for file in files)
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


RESERVE = Script.load("once.lua", "reserve.lua")
SETTLE = Script.load("once.lua", "settle.lua")
BEAT = Script.load("beat.lua")
