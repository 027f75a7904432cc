import type { Completion } from '../command.ts';
import { type CompletionNode, quote } from './nodes.ts';

/** For bash 3.2 (macOS) and newer, with and without the package bash-completion. */
export function renderBash(nodes: readonly CompletionNode[]): string {
  const names = nodes.flatMap(({ path }) => path);
  const values = listValues(nodes);
  const withSubcommands = nodes.flatMap(({ path, subcommands }) => (subcommands.length > 0 ? path : []));
  return `# Completion of gatehouse for bash, written by \`gatehouse completion bash\`.

_gatehouse() {
  local cur=\${COMP_WORDS[COMP_CWORD]} word option='' command='' subcommand='' kind='' words=''
  local -i index position=0
  COMPREPLY=()

  for ((index = 1; index < COMP_CWORD; index++)); do
    word=\${COMP_WORDS[index]}
    if [[ $word == '=' && -n $option ]]; then
      # bash splits --option=value into three words.
      continue
    elif [[ $word == '=' || $word == ':' ]]; then
      # Part of the word before, such as https://… or PATH=VALUE.
      index+=1
    elif [[ -n $option ]]; then
      option=''
    elif [[ $word == -* ]]; then
      case "$command $word" in
${renderCase([[values.flatMap(([patterns]) => patterns), 'option=$word']], 8)}
      esac
    elif [[ -z $command ]]; then
      command=$word
    elif [[ -z $subcommand ]] && _gatehouse_has_subcommands "$command"; then
      subcommand=$word
    else
      position+=1
    fi
  done
  ((index > COMP_CWORD)) && return
  if [[ $cur == '=' || $cur == ':' ]]; then
    [[ $cur == '=' && -n $option ]] || return
    cur=''
  fi

  if [[ -n $option ]]; then
    case "$command $option" in
${renderCase(groupByAction(values), 6)}
    esac
  elif [[ -z $command ]]; then
    words=${quote(['help', ...names, '--help', '--version'].join(' '))}
  elif [[ $cur == -* ]]; then
    case "$command $subcommand" in
${renderCase(groupByAction(listOptions(nodes)), 6)}
    esac
  else
    case "$command $subcommand $position" in
${renderCase(groupByAction([[['help  0'], names], ...listPositionals(nodes)]), 6)}
    esac
  fi

  case $kind in
    file | folder)
      compopt -o filenames 2> /dev/null
      while IFS= read -r word; do COMPREPLY+=("$word"); done < <(
        if [[ $kind == file ]]; then compgen -f -- "$cur"; else compgen -d -- "$cur"; fi
      )
      ;;
    *)
      while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -W "$words" -- "$cur")
      ;;
  esac
}

_gatehouse_has_subcommands() {
  case $1 in
${renderCase([[['help', ...withSubcommands], 'return 0']], 4)}
  esac
  return 1
}

complete -F _gatehouse gatehouse
`;
}

type Entry = readonly [patterns: readonly string[], complete: Completion | undefined];

/** `command --option`, for options that take a value. */
const listValues = (nodes: readonly CompletionNode[]): Entry[] =>
  nodes.flatMap(({ path: [command], options }) =>
    options.flatMap(({ name, short, value, complete }): Entry[] => {
      const spellings = [`--${name}`, ...(short === undefined ? [] : [`-${short}`])];
      return value === undefined ? [] : [[spellings.map((spelling) => `${command} ${spelling}`), complete]];
    }),
  );

/** `command subcommand`; the subcommand may be empty. */
const listOptions = (nodes: readonly CompletionNode[]): Entry[] =>
  nodes
    .flatMap((node) => [node, ...node.subcommands])
    .map(({ path: [command, subcommand = ''], options }) => [
      [`${command} ${subcommand}`],
      options.map(({ name }) => `--${name}`),
    ]);

/** `command subcommand position`. */
const listPositionals = (nodes: readonly CompletionNode[]): Entry[] =>
  nodes.flatMap(({ path: [command, subcommand = ''], positionals, subcommands }): Entry[] => [
    ...positionals.map((complete, index): Entry => [[`${command} ${subcommand} ${index}`], complete]),
    ...(subcommands.length === 0
      ? []
      : [[[`${command}  0`, `help ${command} 0`], subcommands.map(({ path }) => path.at(-1) ?? '')] satisfies Entry]),
    ...listPositionals(subcommands),
  ]);

type Cases = readonly (readonly [patterns: readonly string[], action: string])[];

/** One branch for all patterns with the same result. */
function groupByAction(entries: readonly Entry[]): Cases {
  const byAction = new Map<string, string[]>();
  for (const [patterns, complete] of entries) {
    if (complete === undefined) continue;
    const action = typeof complete === 'string' ? `kind=${complete}` : `words=${quote(complete.join(' '))}`;
    byAction.set(action, [...(byAction.get(action) ?? []), ...patterns]);
  }
  return [...byAction].map(([action, patterns]) => [patterns, action]);
}

const renderCase = (cases: Cases, indent: number): string =>
  cases.map(([patterns, action]) => `${' '.repeat(indent)}${patterns.map(quote).join(' | ')}) ${action} ;;`).join('\n');
