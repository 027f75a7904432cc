import type { Completion } from '../command.ts';
import type { CompletionNode, CompletionOption } from './nodes.ts';

export function renderFish(nodes: readonly CompletionNode[]): string {
  return `# Completion of gatehouse for fish, written by \`gatehouse completion fish\`.

# Whether the command line begins with these words, after the name of the program.
function __gatehouse_at
    set -l words (commandline -opc)
    set -e words[1]
    set -l last (count $argv)
    test $last -eq 0; and return 0
    test (count $words) -ge $last; and test "$words[1..$last]" = "$argv"
end

# Whether these words are the whole command line so far.
function __gatehouse_after
    test (count (commandline -opc)) -eq (math (count $argv) + 1); and __gatehouse_at $argv
end

complete -c gatehouse -f
${[
  ...nodes.map((node) => renderWord('__gatehouse_after', node)),
  `complete -c gatehouse -n __gatehouse_after -a help -d ${quoteFish('shows this help, or that of a command')}`,
  ...nodes.map((node) => renderWord(quoteFish('__gatehouse_after help'), node)),
  ...nodes.flatMap(renderNode),
].join('\n')}
`;
}

const renderWord = (condition: string, { path, summary }: CompletionNode): string =>
  `complete -c gatehouse -n ${condition} -a ${path.at(-1)} -d ${quoteFish(summary)}`;

function renderNode({ path, options, subcommands, positionals }: CompletionNode): string[] {
  const at = `__gatehouse_at ${path.join(' ')}`;
  const isOther = subcommands.map((node) => `; and not __gatehouse_at ${node.path.join(' ')}`).join('');
  return [
    ...subcommands.flatMap((node) => [
      renderWord(quoteFish(`__gatehouse_after ${path.join(' ')}`), node),
      renderWord(quoteFish(`__gatehouse_after help ${path.join(' ')}`), node),
    ]),
    ...options.map((option) => renderOption(at + isOther, option)),
    ...positionals.flatMap((complete) =>
      complete === undefined ? [] : [`complete -c gatehouse -n ${quoteFish(at)} ${renderCompletion(complete)}`],
    ),
    ...subcommands.flatMap(renderNode),
  ];
}

function renderOption(condition: string, { name, short, help, value, complete }: CompletionOption): string {
  const spelling = `-l ${name}${short === undefined ? '' : ` -s ${short}`}`;
  const argument = value === undefined ? '' : complete === undefined ? ' -x' : ` -r ${renderCompletion(complete)}`;
  return `complete -c gatehouse -n ${quoteFish(condition)} ${spelling}${argument} -d ${quoteFish(help)}`;
}

function renderCompletion(complete: Completion): string {
  if (complete === 'file') return '-F';
  return `-f -a ${quoteFish(complete === 'folder' ? '(__fish_complete_directories)' : complete.join(' '))}`;
}

/** In single quotes, fish reads \\' and \\\\. */
const quoteFish = (text: string): string => `'${text.replace(/[\\']/g, String.raw`\$&`)}'`;
