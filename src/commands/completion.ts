import { COMMON_OPTIONS } from './arguments.ts';
import { type Command, type Completion, type Option } from './command.ts';
import { loadGroups } from './registry.ts';

export const command: Command = {
  name: 'completion',
  summary: 'prints a script that completes commands and options in a shell',
  usage: ['gatehouse completion bash|zsh|fish'],
  options: {},
  positionals: { min: 1, max: 1 },
  subcommands: Object.fromEntries(
    ['bash', 'zsh', 'fish'].map((shell) => [
      shell,
      { summary: `prints the completion script for ${shell}`, usage: [`gatehouse completion ${shell}`], options: [] },
    ]),
  ),
  notes: [
    'bash: add this to ~/.bashrc: eval "$(gatehouse completion bash)"',
    'zsh: add this to ~/.zshrc, after compinit: eval "$(gatehouse completion zsh)"',
    'fish: gatehouse completion fish > ~/.config/fish/completions/gatehouse.fish',
    'The script is for this version: print it again after an upgrade if you keep it in a file.',
  ],
  async run({ positionals: [shell], stdout }) {
    const nodes = (await loadGroups()).flatMap(({ commands }) => commands.map(createNode));
    stdout(RENDERERS[shell as keyof typeof RENDERERS](nodes));
  },
};

const RENDERERS = { bash: renderBash, zsh: renderZsh, fish: renderFish } as const;

/** What can follow a command, or a command and its subcommand. */
interface CompletionNode {
  /** Such as `keys rotate`. */
  readonly path: readonly string[];
  readonly summary: string;
  readonly options: readonly CompletionOption[];
  readonly subcommands: readonly CompletionNode[];
  /** By position; empty where nothing can be offered. */
  readonly positionals: readonly (Completion | undefined)[];
}

interface CompletionOption extends Option {
  readonly name: string;
  readonly complete: Completion | undefined;
}

function createNode(command: Command): CompletionNode {
  const { name, summary, subcommands = {}, positionals } = command;
  const options = Object.entries({ ...command.options, ...COMMON_OPTIONS }).map(createOption);
  const common = Object.keys(COMMON_OPTIONS);
  return {
    path: [name],
    summary,
    options,
    subcommands: Object.entries(subcommands).map(([subcommandName, subcommand]) => ({
      path: [name, subcommandName],
      summary: subcommand.summary,
      options: options.filter((option) => subcommand.options.includes(option.name) || common.includes(option.name)),
      subcommands: [],
      positionals: positionals?.complete ?? [],
    })),
    positionals: command.subcommands === undefined ? (positionals?.complete ?? []) : [],
  };
}

const PATH_PLACEHOLDERS: Readonly<Record<string, 'file' | 'folder'>> = {
  FILE: 'file',
  CONFIGURATION: 'file',
  FOLDER: 'folder',
};

const createOption = ([name, option]: readonly [string, Option]): CompletionOption => {
  const { value = '' } = option;
  return { ...option, name, complete: value.includes('|') ? value.split('|') : PATH_PLACEHOLDERS[value] };
};

/** Quotes text for a shell. */
const quote = (text: string): string => `'${text.replaceAll("'", String.raw`'\''`)}'`;

/** What may follow some words; an empty list for a value that cannot be completed. */
type Rule = readonly [words: string, complete: Completion];

/**
 * For bash 3.2 (macOS) and newer, with and without the package bash-completion. Keys of the rules: `PATH >` has the next command
 * or subcommand, `PATH -` the options, `PATH 0` the first argument, and `COMMAND --option` the value of the option.
 */
function renderBash(nodes: readonly CompletionNode[]): string {
  const names = nodes.flatMap(({ path }) => path);
  const rules: Rule[] = [
    [' >', ['help', ...names, '--help', '--version']],
    [' -', ['--help', '--version']],
    ['help >', names],
    ...nodes.flatMap(listRules),
  ];
  const branches = rules.map(([words, complete]) => {
    const action = typeof complete === 'string' ? `kind=${complete}` : `words=${quote(complete.join(' '))}`;
    return `    ${quote(words)}) ${action} ;;`;
  });
  return `# Completion of gatehouse for bash, written by \`gatehouse completion bash\`.

_gatehouse() {
  local cur=\${COMP_WORDS[COMP_CWORD]} word option='' path='' kind='' words=''
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
      _gatehouse_find "\${path%% *} $word" && option=$word
    elif _gatehouse_find "$path >"; then
      path="\${path:+$path }$word"
    else
      position+=1
    fi
  done
  ((index > COMP_CWORD)) && return
  if [[ $cur == '=' || $cur == ':' ]]; then
    [[ $cur == '=' && -n $option ]] || return
    cur=''
  fi

  kind='' words=''
  if [[ -n $option ]]; then
    _gatehouse_find "\${path%% *} $option"
  elif [[ $cur == -* ]]; then
    _gatehouse_find "$path -"
  else
    _gatehouse_find "$path >" || _gatehouse_find "$path $position"
  fi

  [[ -n $kind ]] && compopt -o filenames 2> /dev/null
  while IFS= read -r word; do COMPREPLY+=("$word"); done < <(
    case $kind in
      file) compgen -f -- "$cur" ;;
      folder) compgen -d -- "$cur" ;;
      *) compgen -W "$words" -- "$cur" ;;
    esac
  )
}

_gatehouse_find() {
  case $1 in
${branches.join('\n')}
    *) return 1 ;;
  esac
}

complete -F _gatehouse gatehouse
`;
}

function listRules({ path, options, positionals, subcommands }: CompletionNode): readonly Rule[] {
  const words = path.join(' ');
  const names = subcommands.map((node) => node.path.at(-1) ?? '');
  return [
    ...(names.length === 0 ? [] : [[`${words} >`, names] as const, [`help ${words} >`, names] as const]),
    [`${words} -`, options.map(({ name }) => `--${name}`)],
    ...positionals.map((complete = [], index) => [`${words} ${index}`, complete] as const),
    ...options.flatMap(({ name, short, value, complete = [] }) =>
      value === undefined
        ? []
        : listSpellings(name, short).map((spelling) => [`${words} ${spelling}`, complete] as const),
    ),
    ...subcommands.flatMap(listRules),
  ];
}

const listSpellings = (name: string, short: string | undefined): readonly string[] => [
  `--${name}`,
  ...(short === undefined ? [] : [`-${short}`]),
];

/** For a file `_gatehouse` in fpath, and for `eval` after compinit. */
function renderZsh(nodes: readonly CompletionNode[]): string {
  return `#compdef gatehouse
# Completion of gatehouse for zsh, written by \`gatehouse completion zsh\`.

${renderChoice('_gatehouse', nodes, [], [{ path: ['help'], summary: 'shows this help, or that of a command' }])}

_gatehouse_help() {
${renderDescribe(nodes, '  ')}
}

${nodes.flatMap((node) => renderZshNode(node)).join('\n\n')}

if [[ $funcstack[1] == _gatehouse ]]; then
  _gatehouse "$@"
else
  compdef _gatehouse gatehouse
fi
`;
}

const getFunctionName = (path: readonly string[]): string => ['_gatehouse', ...path].join('_');

function renderZshNode({ path, options, subcommands, positionals }: CompletionNode): string[] {
  const name = getFunctionName(path);
  if (subcommands.length > 0) return [renderChoice(name, subcommands, options), ...subcommands.flatMap(renderZshNode)];
  const specs = [
    ...options.flatMap(renderZshOption),
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
  const specs = [...options.flatMap(renderZshOption), '1: :->command', '*:: :->arguments'];
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

function renderZshOption({ name, short, help, multiple, value, complete }: CompletionOption): string[] {
  const names = listSpellings(name, short);
  const prefix = multiple === true ? '*' : names.length > 1 ? `(${names.join(' ')})` : '';
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

function renderFish(nodes: readonly CompletionNode[]): string {
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
  ...nodes.flatMap(renderFishNode),
].join('\n')}
`;
}

const renderWord = (condition: string, { path, summary }: CompletionNode): string =>
  `complete -c gatehouse -n ${condition} -a ${path.at(-1)} -d ${quoteFish(summary)}`;

function renderFishNode({ path, options, subcommands, positionals }: CompletionNode): string[] {
  const at = `__gatehouse_at ${path.join(' ')}`;
  const isOther = subcommands.map((node) => `; and not __gatehouse_at ${node.path.join(' ')}`).join('');
  return [
    ...subcommands.flatMap((node) => [
      renderWord(quoteFish(`__gatehouse_after ${path.join(' ')}`), node),
      renderWord(quoteFish(`__gatehouse_after help ${path.join(' ')}`), node),
    ]),
    ...options.map((option) => renderFishOption(at + isOther, option)),
    ...positionals.flatMap((complete) =>
      complete === undefined ? [] : [`complete -c gatehouse -n ${quoteFish(at)} ${renderCompletion(complete)}`],
    ),
    ...subcommands.flatMap(renderFishNode),
  ];
}

function renderFishOption(condition: string, { name, short, help, value, complete }: CompletionOption): string {
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
