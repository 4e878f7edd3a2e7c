/* A WebSocket that comes back by itself and says how it is.

   status(name, seconds): "connecting", "live", "waiting" (seconds until the next try), "signed-out".
   The server's first message after each connect is the full state, so nothing has to be caught up. */
const FIRST_WAIT_S = 1;
const LONGEST_WAIT_S = 20;
const PING_MS = 10_000;
const SILENT_MS = 25_000; // no word at all, not even an answer to a ping: the line is dead

export class LiveSocket {
  constructor(path, { message, status, sessionUrl }) {
    this.url = new URL(path, location.href);
    this.url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    this.message = message;
    this.status = status;
    this.sessionUrl = sessionUrl;
    this.failures = 0;
    this.heard = 0;
    window.addEventListener("online", () => this.retryNow());
    document.addEventListener("visibilitychange", () => document.hidden || this.retryNow());
    this.watch = setInterval(() => this.check(), PING_MS);
    this.open();
  }

  open() {
    clearInterval(this.countdown);
    this.countdown = undefined;
    this.status("connecting");
    const socket = (this.socket = new WebSocket(this.url));
    socket.addEventListener("open", () => {
      this.failures = 0;
      this.heard = performance.now();
      this.status("live");
    });
    socket.addEventListener("message", (event) => {
      this.heard = performance.now();
      if (event.data !== "pong") this.message(JSON.parse(event.data));
    });
    socket.addEventListener("close", () => {
      if (socket === this.socket) this.closed();
    });
  }

  async closed() {
    this.socket = undefined;
    if (await this.isSignedOut()) {
      clearInterval(this.watch);
      this.status("signed-out");
      return;
    }
    if (this.socket || this.countdown) return; // a retry began meanwhile
    const longest = Math.min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** this.failures++);
    let left = Math.max(1, Math.round(longest * (0.75 + Math.random() / 2))); // many viewers, one restart
    this.status("waiting", left);
    this.countdown = setInterval(() => {
      left -= 1;
      if (left <= 0) this.open();
      else this.status("waiting", left);
    }, 1000);
  }

  retryNow() {
    if (!this.socket && this.countdown) this.open();
  }

  check() {
    if (this.socket?.readyState !== WebSocket.OPEN) return;
    if (performance.now() - this.heard > SILENT_MS) this.socket.close();
    else this.socket.send("ping");
  }

  /* A refused handshake looks like any other failure to a script, so the session is asked for. */
  async isSignedOut() {
    try {
      const response = await fetch(this.sessionUrl, { headers: { accept: "application/json" } });
      return response.ok && !(await response.json()).staff;
    } catch (error) {
      if (error instanceof TypeError || error instanceof SyntaxError) return false; // no server, or not ours
      throw error;
    }
  }
}
