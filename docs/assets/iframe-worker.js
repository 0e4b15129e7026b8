// Browsers start no workers for pages opened as files, and the site's search runs in one. There, a
// hidden frame takes the worker's place: its script answers through the same messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.head.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      inside.document.open();
      inside.document.write("<!doctype html><html><body></body></html>");
      inside.document.close();
      const answer = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      inside.postMessage = (data) => answer(data);
      inside.importScripts = (...urls) =>
        urls.reduce(
          (before, each) =>
            before.then(
              () =>
                new Promise((done, failed) => {
                  const script = inside.document.createElement("script");
                  script.src = new URL(each, url);
                  script.onload = done;
                  script.onerror = failed;
                  inside.document.body.appendChild(script);
                }),
            ),
          Promise.resolve(),
        );
      const script = inside.document.createElement("script");
      script.src = url;
      script.onload = () => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.deliver(data));
      };
      inside.document.body.appendChild(script);
    }
    deliver(data) {
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.deliver(data);
    }
    terminate() {
      this.frame.remove();
    }
  };
}
