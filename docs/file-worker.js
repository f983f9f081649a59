// Browsers start no worker in a page that is opened as a file: there the search runs in a hidden frame of the page.
// Material's plugin "offline" would load the same from another site; scripts/site_hooks.py puts this in its place.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.body.appendChild(document.createElement("iframe"));
      frame.hidden = true;
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = frame.contentDocument.createElement("script");
      script.src = new URL(url, document.baseURI);
      this.loaded = new Promise((done) => { script.onload = done; });
      frame.contentDocument.head.append(script);
    }

    postMessage(data) { this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data }))); }
  };
}
