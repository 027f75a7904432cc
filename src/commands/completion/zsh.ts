import type { Completion } from '../command.ts';
import { type CompletionNode, type CompletionOption, quote } from './nodes.ts';

/** For a file `_gatehouse` in fpath, and for `eval` after compinit. */
export function renderZsh(nodes: readonly CompletionNode[]): string {
  return `#compdef gatehouse
# Completion of gatehouse for zsh, written by \`gatehouse completion zsh\`.

${renderChoice('_gatehouse', nodes, [], [{ path: ['help'], summary: 'shows this help, or that of a command' }])}

_gatehouse_help() {
${renderDescribe(nodes, '  ')}
}

${nodes.flatMap((node) => renderNode(node)).join('\n\n')}

if [[ $funcstack[1] == _gatehouse ]]; then
  _gatehouse "$@"
else
  compdef _gatehouse gatehouse
fi
`;
}

const getFunctionName = (path: readonly string[]): string => ['_gatehouse', ...path].join('_');

function renderNode({ path, options, subcommands, positionals }: CompletionNode): string[] {
  const name = getFunctionName(path);
  if (subcommands.length > 0) return [renderChoice(name, subcommands, options), ...subcommands.flatMap(renderNode)];
  const specs = [
    ...options.flatMap(renderOption),
    ...positionals.flatMap((complete, index) =>
      complete === undefined ? [] : [`${index + 1}: :${renderAction(complete)}`],
    ),
  ];
  return [`${name}() {\n  _arguments -s ${renderSpecs(specs)}\n}`];
}

type NodeName = Pick<CompletionNode, 'path' | 'summary'>;

/** A function that completes the name of a command, and then calls the function of that command. */
function renderChoice(
  name: string,
  nodes: readonly NodeName[],
  options: readonly CompletionOption[],
  more: readonly NodeName[] = [],
): string {
  const specs = [...options.flatMap(renderOption), '1: :->command', '*:: :->arguments'];
  const all = [...nodes, ...more];
  return `${name}() {
  local curcontext="$curcontext" state line
  local -A opt_args
  _arguments -C ${renderSpecs(specs)} && return
  case $state in
    command)
${renderDescribe(all, '      ')}
      ;;
    arguments)
      case $line[1] in
${all.map(({ path }) => `        ${path.at(-1)}) ${getFunctionName(path)} ;;`).join('\n')}
      esac
      ;;
  esac
}`;
}

const renderDescribe = (nodes: readonly NodeName[], indent: string): string =>
  `${indent}local -a commands
${indent}commands=(
${nodes.map(({ path, summary }) => `${indent}  ${quote(`${path.at(-1)}:${summary}`)}`).join('\n')}
${indent})
${indent}_describe -t commands command commands`;

const renderSpecs = (specs: readonly string[]): string => specs.map((spec) => `\\\n    ${quote(spec)}`).join(' ');

function renderOption({ name, short, help, multiple, value, complete }: CompletionOption): string[] {
  const names = [`--${name}`, ...(short === undefined ? [] : [`-${short}`])];
  const prefix = multiple ? '*' : names.length > 1 ? `(${names.join(' ')})` : '';
  const argument = value === undefined ? '' : `:${escapeSpec(value)}:${renderAction(complete)}`;
  return names.map((spelling) => {
    // `=` and `+`: the value is in the same word or in the next one.
    const suffix = value === undefined ? '' : spelling.startsWith('--') ? '=' : '+';
    return `${prefix}${spelling}${suffix}[${escapeSpec(help)}]${argument}`;
  });
}

function renderAction(complete: Completion | undefined): string {
  if (complete === undefined) return ' ';
  if (typeof complete === 'string') return complete === 'file' ? '_files' : '_files -/';
  return `(${complete.join(' ')})`;
}

const escapeSpec = (text: string): string => text.replace(/[\\[\]:]/g, String.raw`\$&`);
