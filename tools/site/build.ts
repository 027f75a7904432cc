// npm run docs:site [-- --serve]: builds the documentation as a static site in site/, and checks its links.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import type { AddressInfo } from 'node:net';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { CACHE } from '../chart/install.ts';
import { findBrokenLinks } from './links.ts';
import { createSidebar, listPages, renderFrontMatter, rewritePage } from './pages.ts';
import { serveSite } from './serve.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const HERE = fileURLToPath(new URL('.', import.meta.url));
const SHOWN_LINKS = 50;
const MANIFESTS = ['package.json', 'package-lock.json'];

export class SiteError extends Error {}

/** Installs the generator once for each version of its lock file, outside the checkout; returns its folder. */
function installGenerator(): string {
  const hash = createHash('sha256')
    .update(readFileSync(join(HERE, 'package-lock.json')))
    .digest('hex')
    .slice(0, 16);
  const target = join(CACHE, `site-${hash}`);
  if (existsSync(target)) return target;
  console.log(`installing the generator in ${target} …`);
  mkdirSync(CACHE, { recursive: true });
  const copy = mkdtempSync(join(CACHE, 'site-new-'));
  try {
    for (const file of MANIFESTS) cpSync(join(HERE, file), join(copy, file));
    const args = ['ci', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error'];
    const { status } = spawnSync('npm', args, { cwd: copy, stdio: ['ignore', 'inherit', 'inherit'] });
    if (status !== 0) throw new SiteError('npm could not install the generator; the first build needs a registry');
    // Another build may have been faster.
    if (!existsSync(target)) renameSync(copy, target);
    return target;
  } finally {
    rmSync(copy, { recursive: true, force: true });
  }
}

/** Without variables such as BASE_URL, which the generator would use. It leaves files in its folder for temporary ones. */
const createEnvironment = (temporary: string): NodeJS.ProcessEnv => ({
  HOME: process.env['HOME'],
  PATH: process.env['PATH'],
  TMPDIR: temporary,
  ASTRO_TELEMETRY_DISABLED: '1',
  NODE_ENV: 'production',
});

export interface SiteOptions {
  /** The folder of the result. Its content is replaced. */
  readonly out: string;
  readonly base: string;
  readonly sourceUrl?: string | undefined;
}

/** Builds the site. Needs no network once the generator is installed. */
export function buildSite({ out, base, sourceUrl }: SiteOptions): void {
  const generator = installGenerator();
  // Below the generator, so that its packages are found.
  const project = mkdtempSync(join(generator, 'build-'));
  try {
    cpSync(join(HERE, 'astro'), project, { recursive: true });
    const pages = listPages(ROOT);
    const rewritten = pages.map((page) => ({
      page,
      ...rewritePage(page, { root: ROOT, base, sourceUrl, pages }),
    }));
    const problems = rewritten.flatMap((page) => page.problems);
    if (problems.length > 0) throw new SiteError(problems.join('\n'));
    for (const { page, markdown, files } of rewritten) {
      const target = join(project, 'src/content/docs', page.route, 'index.md');
      mkdirSync(dirname(target), { recursive: true });
      writeFileSync(target, renderFrontMatter(page) + markdown);
      for (const file of files) cpSync(join(ROOT, file), join(project, 'public', file));
    }
    const site = { base, outDir: out, sidebar: createSidebar(pages) };
    writeFileSync(join(project, 'site.json'), JSON.stringify(site));
    const astro = join(generator, 'node_modules/astro/bin/astro.mjs');
    const { status, stdout, stderr } = spawnSync(process.execPath, [astro, 'build', '--root', project], {
      cwd: project,
      encoding: 'utf8',
      env: createEnvironment(project),
    });
    if (status !== 0) throw new SiteError(`the generator failed:\n${stdout}${stderr}`);
    const broken = findBrokenLinks(out, base);
    if (broken.length > 0)
      throw new SiteError(`${broken.length} broken links:\n  ${broken.slice(0, SHOWN_LINKS).join('\n  ')}`);
    console.log(`${pages.length} pages in ${out}; all links are valid`);
  } finally {
    rmSync(project, { recursive: true, force: true });
  }
}

if (import.meta.main) {
  const { values } = parseArgs({
    options: {
      out: { type: 'string', default: join(ROOT, 'site') },
      base: { type: 'string', default: '/' },
      'source-url': { type: 'string' },
      serve: { type: 'boolean', default: false },
      port: { type: 'string', default: '8080' },
    },
  });
  try {
    const out = resolve(values.out);
    const base = `/${values.base}/`.replaceAll(/\/+/g, '/');
    buildSite({ out, base, sourceUrl: values['source-url'] });
    if (values.serve) {
      const server = await serveSite(out, base, Number(values.port));
      console.log(`http://localhost:${(server.address() as AddressInfo).port}${base}`);
    }
  } catch (error) {
    if (!(error instanceof SiteError)) throw error;
    console.error(error.message);
    process.exitCode = 1;
  }
}
