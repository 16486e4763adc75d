/* A page from the disk may start no worker: the search's then runs in a hidden frame. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script>
        const page = parent
        postMessage = data => page.postMessage(data, "*")
        let loading = Promise.resolve()
        importScripts = (...urls) => loading = urls.reduce((before, url) => before.then(() =>
          new Promise(done => {
            const script = document.createElement("script")
            script.src = url
            script.onload = script.onerror = done
            document.head.append(script)
          })), loading)
      <\/script><script src="${url}"><\/script>`;
      this.ready = new Promise((done) => frame.addEventListener("load", () => done(frame.contentWindow)));
      window.addEventListener("message", (event) => {
        if (event.source !== frame.contentWindow) return;
        this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      document.body.append(frame);
    }
    postMessage(data) {
      this.ready.then((page) => page.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {}
  };
}
