/** Quotes a word for sh where necessary. */
export const quoteForShell = (word: string): string =>
  /^[A-Za-z0-9_./:@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", String.raw`'\''`)}'`;

/** A YAML scalar: plain where that is safe. */
export const quoteForYaml = (text: string): string =>
  /^[A-Za-z_./](?:[A-Za-z0-9_./@+:-]*[A-Za-z0-9_/-])?$/.test(text) &&
  !/^(?:true|false|null|yes|no|on|off|y|n|\.+)$/i.test(text)
    ? text
    : JSON.stringify(text);
