"""The description of the REST API as OpenAPI 3.1: shapes of answers, routes, and the document."""
