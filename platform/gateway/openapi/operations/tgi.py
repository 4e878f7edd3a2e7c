"""The API of text-generation-inference."""

from gateway.dialects.tgi.info import Info
from gateway.dialects.tgi.schema import CompatBody, GenerateBody
from gateway.openapi import errors
from gateway.openapi.objects import tgi
from gateway.openapi.operations.base import GENERATION_HEADERS, Operation

TGI_OPERATIONS = (
    Operation(
        method="post",
        path="/",
        id="generateCompat",
        tag="text-generation-inference",
        summary="Generate, whole or streamed",
        description="`stream` decides. A whole answer is a list with one entry.",
        parameters=GENERATION_HEADERS,
        request=CompatBody,
        example={"inputs": "Say hello:", "parameters": {"max_new_tokens": 64}},
        answer=list[tgi.GeneratedText],
        event=tgi.TokenEvent,
        family=errors.TGI,
        codes=errors.GENERATION,
    ),
    Operation(
        method="post",
        path="/generate",
        id="generate",
        tag="text-generation-inference",
        summary="Generate",
        parameters=GENERATION_HEADERS,
        request=GenerateBody,
        example={"inputs": "Say hello:", "parameters": {"max_new_tokens": 64, "details": True}},
        answer=tgi.GeneratedText,
        family=errors.TGI,
        codes=errors.GENERATION,
    ),
    Operation(
        method="post",
        path="/generate_stream",
        id="generateStream",
        tag="text-generation-inference",
        summary="Generate, streamed",
        description="One event for each token; the last one also has the whole text.",
        parameters=GENERATION_HEADERS,
        request=GenerateBody,
        example={"inputs": "Say hello:", "parameters": {"max_new_tokens": 64, "details": True}},
        event=tgi.TokenEvent,
        family=errors.TGI,
        codes=errors.GENERATION,
    ),
    Operation(
        method="get",
        path="/info",
        id="getInfo",
        tag="text-generation-inference",
        summary="The default model and its limits",
        answer=Info,
        family=errors.TGI,
        codes=("missing_required_parameter", *errors.READY),
        is_public=True,
    ),
)
