import { readFileSync } from 'node:fs';
import starlight from '@astrojs/starlight';
import { defineConfig, passthroughImageService } from 'astro/config';

// Written by tools/site/build.ts.
const { base, outDir, sidebar } = JSON.parse(readFileSync(new URL('site.json', import.meta.url), 'utf8'));

/** Wide tables and code blocks scroll, also with the keyboard. */
const SCROLL_WITH_KEYBOARD = `
for (const element of document.querySelectorAll('.sl-markdown-content :is(table, pre)'))
  if (element.scrollWidth > element.clientWidth) element.tabIndex = 0;
`;

export default defineConfig({
  base,
  outDir,
  cacheDir: './.cache',
  image: { service: passthroughImageService() },
  devToolbar: { enabled: false },
  prefetch: false,
  integrations: [
    starlight({
      title: 'gatehouse',
      description: 'A reverse proxy that adds OAuth to an existing REST API',
      sidebar,
      customCss: ['./src/site.css'],
      head: [{ tag: 'script', attrs: { type: 'module' }, content: SCROLL_WITH_KEYBOARD }],
      components: {
        ThemeProvider: './src/components/SystemTheme.astro',
        ThemeSelect: './src/components/NoThemeSelect.astro',
      },
      // Shiki has no grammar for these.
      expressiveCode: { shiki: { langAlias: { caddyfile: 'nginx', haproxy: 'nginx' } } },
    }),
  ],
});
