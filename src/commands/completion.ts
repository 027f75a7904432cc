import { COMMON_OPTIONS } from './arguments.ts';
import type { Command, Completion, Option } from './command.ts';
import { describeSubcommand } from './help.ts';
import { COMMANDS, loadGroups } from './registry.ts';

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
  ],
  async run({ positionals: [shell], stdout }) {
    stdout(SCRIPTS[shell as keyof typeof SCRIPTS]);
  },
};

type Candidates = readonly (readonly [word: string, description?: string])[];

/**
 * For the scripts: what can be the last of the words of a command line. One candidate per line, with its description after a tab;
 * or `:file` or `:folder`.
 */
export async function complete(words: readonly string[]): Promise<string> {
  const current = words.at(-1) ?? '';
  const found = await findCandidates(words.slice(0, -1), current);
  if (typeof found === 'string') return `:${found}\n`;
  return found
    .filter(([word]) => word.startsWith(current))
    .map((candidate) => `${candidate.join('\t')}\n`)
    .join('');
}

async function findCandidates(
  previous: readonly string[],
  current: string,
): Promise<Candidates | Exclude<Completion, readonly string[]>> {
  const isHelp = previous[0] === 'help';
  const [name, ...rest] = isHelp ? previous.slice(1) : previous;
  if (name === undefined) return [...(await listCommands()), ...(isHelp ? [] : GLOBAL_WORDS)];
  const load = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined;
  if (load === undefined) return [];
  const { command: selected } = await load();
  const { subcommands = {}, positionals } = selected;
  const listOptions = ({ options }: Pick<Command, 'options'>): readonly (readonly [string, Option])[] =>
    Object.entries({ ...options, ...COMMON_OPTIONS });
  const findOption = (word: string): Option | undefined =>
    listOptions(selected).find(([option, { short }]) => word === `--${option}` || word === `-${short}`)?.[1];

  const given: string[] = [];
  let pending: Option | undefined;
  for (const word of rest) {
    if (pending !== undefined) pending = undefined;
    else if (!word.startsWith('-')) given.push(word);
    else if (findOption(word)?.value !== undefined) pending = findOption(word);
  }
  if (pending !== undefined) return completeWith(getValues(pending));
  const assigned = /^(--[^=]+)=/.exec(current);
  if (assigned !== null) return completeWith(getValues(findOption(assigned[1] ?? '')), assigned[0]);
  const [action = ''] = given;
  if (current.startsWith('-'))
    return listOptions(describeSubcommand(selected, action)).map(([option, { help }]) => [`--${option}`, help]);
  const hasSubcommands = Object.keys(subcommands).length > 0;
  if (hasSubcommands && given.length === 0)
    return Object.entries(subcommands).map(([word, { summary }]) => [word, summary]);
  return isHelp ? [] : completeWith(positionals?.complete?.[given.length - (hasSubcommands ? 1 : 0)]);
}

const GLOBAL_WORDS: Candidates = [
  ['help', 'shows this help, or that of a command'],
  ['--help', 'shows this help'],
  ['--version', 'prints the version'],
];

const listCommands = async (): Promise<Candidates> =>
  (await loadGroups()).flatMap(({ commands }) => commands.map(({ name, summary }) => [name, summary] as const));

const PATH_PLACEHOLDERS: Readonly<Record<string, 'file' | 'folder'>> = {
  FILE: 'file',
  CONFIGURATION: 'file',
  FOLDER: 'folder',
};

const getValues = ({ value = '' }: Partial<Option> = {}): Completion | undefined =>
  value.includes('|') ? value.split('|') : PATH_PLACEHOLDERS[value];

const completeWith = (completion: Completion = [], prefix = '') =>
  typeof completion === 'string' ? completion : completion.map((word) => [prefix + word] as const);

const SCRIPTS = {
  // For bash 3.2 (macOS) and newer, with and without the package bash-completion.
  bash: `_gatehouse() {
  local cur=\${COMP_WORDS[COMP_CWORD]} word found words=()
  # bash splits words at = and :, as in --option=value and https://…
  for word in "\${COMP_WORDS[@]:1:COMP_CWORD}"; do
    if [[ \${#words[@]} -gt 0 && ($word == [=:] || \${words[\${#words[@]} - 1]} == *[=:]) ]]; then
      words[\${#words[@]} - 1]+=$word
    else
      words+=("$word")
    fi
  done
  [[ $cur == [=:] ]] && cur=''
  found=$(gatehouse __complete -- "\${words[@]}" 2> /dev/null)
  [[ $found == :* ]] && compopt -o filenames 2> /dev/null
  case $found in
    :file) found=$(compgen -f -- "$cur") ;;
    :folder) found=$(compgen -d -- "$cur") ;;
  esac
  COMPREPLY=()
  while IFS=$'\\t' read -r word _; do
    [[ -n $word ]] && COMPREPLY+=("\${word#"\${words[\${#words[@]} - 1]%"$cur"}"}")
  done <<< "$found"
}
complete -F _gatehouse gatehouse
`,
  // For a file `_gatehouse` in fpath, and for `eval` after compinit.
  zsh: `#compdef gatehouse
_gatehouse() {
  local -a found
  found=("\${(@f)$(gatehouse __complete -- "\${(@Q)words[2,CURRENT-1]}" "$PREFIX" 2> /dev/null)}")
  case $found[1] in
    (:file) compset -P '--*='; _files ;;
    (:folder) compset -P '--*='; _files -/ ;;
    (?*) found=("\${(@)found/$'\\t'/:}"); _describe gatehouse found ;;
  esac
}
if [[ $funcstack[1] == _gatehouse ]]; then _gatehouse "$@"; else compdef _gatehouse gatehouse; fi
`,
  fish: `function __gatehouse_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l found (gatehouse __complete -- $words[2..] "$current" 2> /dev/null)
    set -l option (string match -r -- '^--[^=]+=' "$current")
    switch "$found[1]"
        case :file
            string join \\n -- "$option"(__fish_complete_path (string replace -- "$option" '' "$current"))
        case :folder
            string join \\n -- "$option"(__fish_complete_directories (string replace -- "$option" '' "$current"))
        case '?*'
            string join \\n -- $found
    end
end
complete -c gatehouse -f -a '(__gatehouse_complete)'
`,
} as const;
