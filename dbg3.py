import asyncio, sys, time, json, tempfile
from pathlib import Path
from mcp import Client
from tests.walk import conftest as c
async def lat(cl, tool):
    t=[]
    for _ in range(30):
        b=time.monotonic(); await cl.call_tool(tool, {"text":"x"}); t.append(time.monotonic()-b)
    return sorted(t)[15]*1e3
async def main():
    async with c._listening("chemist.py","http") as port:
        for mode in ("auto","legacy"):
            async with Client(f"http://127.0.0.1:{port}/mcp", mode=mode) as cl: print(mode, "direct sdk", await lat(cl,"shout"), flush=True)
        p=Path(tempfile.mkdtemp())/"m.json"; p.write_text(json.dumps({"upstreams":{"a":{"command":sys.executable,"args":[str(c.SERVERS/"chemist.py"),"stdio"]}}}))
        async with c._serve(p) as s:
          for mode in ("auto","legacy"):
            async with Client(s.url, mode=mode) as cl: print(mode, "gateway http", await lat(cl,"shout_mirrored"), flush=True)
asyncio.run(asyncio.wait_for(main(),60))
