export type Substituted =
  | { readonly kind: 'plain' }
  | { readonly kind: 'filled'; readonly text: string }
  | { readonly kind: 'problem'; readonly message: string };

type Environment = Readonly<Record<string, string | undefined>>;

const PART = /\$\$|\$\{([^}]*)\}|\$\{/g;
const ASKED = /^([A-Za-z_][A-Za-z0-9_]*)(?::-([\s\S]*))?$/;

/**
 * `${NAME}` and `${NAME:-default}` in a value of the file; `$$` is a dollar sign. As in a shell, the default
 * counts when the variable is unset or empty. A lone `$` stays what it is: password hashes are full of them.
 */
export function substitute(text: string, env: Environment): Substituted {
  if (!text.includes('$$') && !text.includes('${')) return { kind: 'plain' };
  const wrong: string[] = [];
  const filled = text.replace(PART, (part: string, asked: string | undefined) => {
    if (part === '$$') return '$';
    const [, name, fallback] = ASKED.exec(asked ?? '') ?? [];
    if (name === undefined) {
      wrong.push(
        'has a "${" that is not ${NAME} or ${NAME:-default}; write $${ for the characters themselves',
      );
      return '';
    }
    const value = env[name];
    if (fallback !== undefined) return value === undefined || value === '' ? fallback : value;
    if (value === undefined)
      wrong.push(
        `asks for the environment variable ${name}, which is not set; set it or write \${${name}:-default}`,
      );
    return value ?? '';
  });
  if (wrong.length > 0) return { kind: 'problem', message: [...new Set(wrong)].join('; ') };
  return { kind: 'filled', text: filled };
}
