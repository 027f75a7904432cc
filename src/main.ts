// No imports before this check: older versions of Node cannot parse the sources.
const major = Number(process.versions.node.split('.')[0]);
if (!(major >= 26)) {
  process.stderr.write(`gatehouse: requires Node 26 or later, but this is ${process.version}\n`);
  process.exit(70);
}

// Stack traces of the built program name the sources. The maps are read when the first trace is printed.
process.setSourceMapsEnabled(true);

// A closed pipe (`gatehouse schema | head`) is not an error.
for (const stream of [process.stdout, process.stderr])
  stream.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') throw error;
    process.exit(0);
  });

// Importing node:http evaluates all of its exports; these load the bundled undici, which costs start-up time and memory.
// `Reflect.deleteProperty` does not throw where they cannot be deleted.
const http = process.getBuiltinModule('node:http');
for (const name of ['WebSocket', 'CloseEvent', 'MessageEvent']) Reflect.deleteProperty(http, name);

// Below MALLOC_MMAP_THRESHOLD_ (bin/gatehouse): pools are allocated frequently.
Buffer.poolSize = 32_768;

const { run } = await import('./commands/run.ts');
process.exitCode = await run(process.argv.slice(2), {
  stdout: (text) => process.stdout.write(text),
  stderr: (text) => process.stderr.write(text),
  isTerminal: process.stdout.isTTY,
  isErrorTerminal: process.stderr.isTTY,
  errorColumns: process.stderr.columns,
  get stdin() {
    return process.stdin;
  },
  env: process.env,
  cwd: process.cwd(),
  execArgv: process.execArgv,
});
