// Requests to the gateway. The token is kept for this browser tab only, and sent as a header, never as a cookie.

const KEY = "mcp-mirror-token";
const CHANGE = { "x-mcp-mirror": "1" };

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const readToken = () => sessionStorage.getItem(KEY) ?? "";
export const keepToken = (token) => sessionStorage.setItem(KEY, token);
export const dropToken = () => sessionStorage.removeItem(KEY);

async function send(path, query, options = {}, token = readToken()) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const search = new URLSearchParams(given).toString();
  const headers = { ...options.headers, ...(token ? { authorization: `Bearer ${token}` } : {}) };
  let response;
  try {
    response = await fetch(`/api/${path}${search ? `?${search}` : ""}`, { ...options, headers, cache: "no-store", credentials: "omit", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The gateway does not answer. Start it again, then reload this page.");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  const message = typeof body.error_description === "string" ? body.error_description : body.error;
  throw new ApiError(response.status, typeof message === "string" ? message : `The gateway answered with status ${response.status}.`);
}

export const get = async (path, query, signal) => (await send(path, query, { signal })).json();
export const change = async (path, query) => (await send(path, query, { method: "POST", headers: CHANGE })).json();
export const blob = async (path, query) => (await send(path, query)).blob();

// Exchanges the token of a link, which works once, for the token of this tab.
export async function login(linkToken) {
  const { token } = await (await send("login", {}, { method: "POST", headers: CHANGE }, linkToken)).json();
  keepToken(token);
}

export async function download(query) {
  const response = await send("download", query);
  const name = /filename="([A-Za-z0-9_.-]+)"/.exec(response.headers.get("content-disposition") ?? "")?.[1] ?? "value.bin";
  const url = URL.createObjectURL(await response.blob());
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
