// A host of MCP Apps with the official bridge, for the browser test of the view.
import { AppBridge, PostMessageTransport } from "@modelcontextprotocol/ext-apps/app-bridge";

const POLICY = "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; media-src 'self' data:; connect-src 'none'";

window.startHost = async (html, result, again, theme) => {
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts");
  frame.title = "View";
  frame.style.cssText = "width: 760px; height: 620px; border: 0";
  document.body.replaceChildren(frame);
  const bridge = new AppBridge(null, { name: "test host", version: "1" }, { serverTools: {} }, { hostContext: { theme, styles: { variables: { "--color-text-primary": theme === "dark" ? "#fafafa" : "#111111" } } } });
  const calls = [];
  bridge.oncalltool = async (params) => { calls.push(params); return again; };
  const sizes = [];
  bridge.onsizechange = ({ height }) => { sizes.push(height); };
  const ready = new Promise((resolve) => { bridge.oninitialized = resolve; });
  const transport = new PostMessageTransport(frame.contentWindow, frame.contentWindow);
  await bridge.connect(transport);
  frame.srcdoc = html.replace("<head>", `<head><meta http-equiv="Content-Security-Policy" content="${POLICY}">`);
  await ready;
  await bridge.sendToolInput({ arguments: {} });
  await bridge.sendToolResult(result);
  window.host = { bridge, calls, sizes };
  return bridge.getAppVersion();
};
