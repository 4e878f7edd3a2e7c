"""The two ways to refuse a parameter's value."""

from gateway.errors import ApiError


def invalid(param: str, rule: str) -> ApiError:
    return ApiError("invalid_value", f"{param} {rule}", param=param)


def unsupported(param: str, reason: str = "is not supported with this value") -> ApiError:
    return ApiError("unsupported_parameter", f"{param} {reason}", param=param)
