// The REST interface, drawn by Swagger UI from the deck's own OpenAPI description.

export function start() {
  const place = document.getElementById("swagger-ui");
  window.SwaggerUIBundle({ domNode: place, url: place.dataset.schema, deepLinking: true, tryItOutEnabled: false });
}
