import type { Environment } from './raw-settings.ts';

type Substitution =
  | { readonly kind: 'unchanged' }
  | { readonly kind: 'substituted'; readonly text: string }
  | { readonly kind: 'problem'; readonly message: string };

const PLACEHOLDER = /\$\$|\$\{([^}]*)\}|\$\{/g;
const VARIABLE = /^([A-Za-z_][A-Za-z0-9_]*)(?::-([\s\S]*))?$/;

/**
 * Substitutes `${NAME}` and `${NAME:-default}` in a value of the file; `$$` is a dollar sign. As in a shell, the default
 * applies if the variable is unset or empty. A single `$` is kept: password hashes contain them.
 */
export function substitute(text: string, env: Environment): Substitution {
  if (!text.includes('$$') && !text.includes('${')) return { kind: 'unchanged' };
  const problems: string[] = [];
  const substituted = text.replace(PLACEHOLDER, (placeholder: string, expression: string | undefined) => {
    if (placeholder === '$$') return '$';
    const [, name, fallback] = VARIABLE.exec(expression ?? '') ?? [];
    if (name === undefined) {
      problems.push('contains "${" without ${NAME} or ${NAME:-default}; write $${ for a literal ${');
      return '';
    }
    const value = env[name];
    if (fallback !== undefined) return value === undefined || value === '' ? fallback : value;
    if (value === undefined)
      problems.push(`uses the environment variable ${name}, which is not set; set it or write \${${name}:-default}`);
    return value ?? '';
  });
  if (problems.length > 0) return { kind: 'problem', message: [...new Set(problems)].join('; ') };
  return { kind: 'substituted', text: substituted };
}
