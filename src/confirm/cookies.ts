/** Every value of this name; more than one means that somebody else has put one there. */
export function cookieValues(header: string | undefined, name: string): string[] {
  return (header ?? '')
    .split(';')
    .map((pair) => pair.trim())
    .filter((pair) => pair.startsWith(`${name}=`))
    .map((pair) => pair.slice(name.length + 1));
}

/** `Strict`: not sent with a way that begins on another site. `Lax`: sent when a provider sends the person back. */
export function cookieFlags(name: string, seconds: number, site: 'Strict' | 'Lax'): string {
  const secure = name.startsWith('__Host-') ? '; Secure' : '';
  return `Path=/; Max-Age=${seconds}; HttpOnly; SameSite=${site}${secure}`;
}
