"""The API's reference: one OpenAPI document, made from the structs that the gateway validates with."""
