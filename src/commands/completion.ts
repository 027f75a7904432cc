import { type Command, EXIT, type Subcommand } from './command.ts';
import { renderBash } from './completion/bash.ts';
import { renderFish } from './completion/fish.ts';
import { type CompletionNode, createNode } from './completion/nodes.ts';
import { renderZsh } from './completion/zsh.ts';
import { loadGroups } from './registry.ts';

const SHELLS = { bash: renderBash, zsh: renderZsh, fish: renderFish } satisfies Readonly<
  Record<string, (nodes: readonly CompletionNode[]) => string>
>;

const createSubcommand = (shell: keyof typeof SHELLS): Subcommand => ({
  summary: `prints the completion script for ${shell}`,
  usage: [`gatehouse completion ${shell}`],
  options: [],
});

export const command: Command = {
  name: 'completion',
  summary: 'prints a script that completes commands and options in a shell',
  usage: ['gatehouse completion bash|zsh|fish'],
  options: {},
  positionals: { min: 1, max: 1 },
  subcommands: {
    bash: createSubcommand('bash'),
    zsh: createSubcommand('zsh'),
    fish: createSubcommand('fish'),
  },
  notes: [
    'bash: add this to ~/.bashrc: eval "$(gatehouse completion bash)"',
    'zsh: add this to ~/.zshrc, after compinit: eval "$(gatehouse completion zsh)"',
    'fish: gatehouse completion fish > ~/.config/fish/completions/gatehouse.fish',
    'The script is for this version: print it again after an upgrade if you keep it in a file.',
  ],
  async run({ positionals: [shell], stdout }) {
    const nodes = (await loadGroups()).flatMap(({ commands }) => commands.map(createNode));
    stdout(SHELLS[shell as keyof typeof SHELLS](nodes));
    return EXIT.ok;
  },
};
