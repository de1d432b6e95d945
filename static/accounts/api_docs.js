// Starts the API reference from the files that ship with the portal; requests carry the session's CSRF token.
const place = document.getElementById("api-docs");

function csrfToken() {
  const cookie = document.cookie.split("; ").find((part) => part.startsWith("csrftoken="));
  return cookie ? decodeURIComponent(cookie.slice("csrftoken=".length)) : "";
}

SwaggerUIBundle({
  domNode: place,
  url: place.dataset.schema,
  deepLinking: true,
  docExpansion: "list",
  defaultModelsExpandDepth: -1,
  validatorUrl: null,
  requestInterceptor: (request) => {
    if (new URL(request.url, location.href).origin === location.origin) {
      request.headers["X-CSRFToken"] = csrfToken();
    }
    return request;
  },
});
