// A streamed answer in Node or Electron, with nothing but fetch: node fetch_client.mjs http://127.0.0.1:8080/v1
const [url] = process.argv.slice(2);
const body = { messages: [{ role: "user", content: "Name three rivers." }], stream: true, max_tokens: 40 };
const response = await fetch(`${url}/chat/completions`, {
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(body),
});
if (!response.ok) throw new Error((await response.json()).error.message);

let rest = "";
for await (const bytes of response.body.pipeThrough(new TextDecoderStream())) {
  const lines = (rest + bytes).split("\n\n");
  rest = lines.pop();
  for (const line of lines) {
    const data = line.slice("data: ".length);
    if (data === "[DONE]") process.stdout.write("\ndone\n");
    else process.stdout.write(JSON.parse(data).choices[0]?.delta?.content ?? "");
  }
}
