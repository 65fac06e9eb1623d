// The server's API: requests with the token, errors as sentences, and patience while the server is busy.

const TOKEN = "gpldla.token";
const MOST_TRIES = 5;
const UNREACHABLE = "The server does not answer. Is it still running? Nothing has been changed.";

/** A request that failed; its message is a sentence for the visitor, and status 0 means no answer. */
export class Failure extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export class Api {
  #token = sessionStorage.getItem(TOKEN);
  #asking = null;

  /** `askToken(wasWrong)` resolves to what the visitor types. */
  constructor(askToken) {
    this.askToken = askToken;
  }

  get hasToken() {
    return this.#token !== null;
  }

  /** Send a request and return what the answer's JSON says. */
  async json(method, path, body) {
    const response = await this.send(method, path, body);
    return response.status === 204 ? null : response.json();
  }

  /** Send a request; body: a form, anything else as JSON, or undefined. */
  async send(method, path, body) {
    for (let tries = 1; ; tries += 1) {
      const token = this.#token;
      const response = await this.#once(method, path, body);
      if (response.ok) return response;
      if (response.status === 401) await this.#unlock(token);
      else if (response.status === 429 && tries < MOST_TRIES) await seconds(response.headers.get("Retry-After"));
      else throw await failureOf(response);
    }
  }

  /** Return an address that an <img> can show; pictures behind a token are fetched with it. */
  async picture(path) {
    if (!this.hasToken) return path;
    return URL.createObjectURL(await (await this.send("GET", path)).blob());
  }

  async #once(method, path, body) {
    const headers = {};
    if (this.#token !== null) headers.Authorization = `Bearer ${this.#token}`;
    let sent = body;
    if (body !== undefined && !(body instanceof FormData)) {
      headers["Content-Type"] = "application/json";
      sent = JSON.stringify(body);
    }
    try {
      return await fetch(path, { method, headers, body: sent });
    } catch {
      throw new Failure(0, UNREACHABLE);
    }
  }

  /** Ask for the token once, however many requests wait for it. */
  async #unlock(used) {
    if (this.#token !== used) return; // another request has asked in the meantime
    this.#asking ??= this.askToken(used !== null).finally(() => (this.#asking = null));
    this.#token = (await this.#asking).trim();
    sessionStorage.setItem(TOKEN, this.#token);
  }
}

async function failureOf(response) {
  let detail = `The server answered ${response.status}.`;
  try {
    detail = (await response.json()).detail ?? detail;
  } catch {
    // a proxy's own page; the status has to do
  }
  return new Failure(response.status, detail);
}

function seconds(text) {
  return new Promise((resolve) => setTimeout(resolve, 1000 * (Number(text) || 1)));
}
