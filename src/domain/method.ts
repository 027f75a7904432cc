/**
 * A method that is forwarded. RFC 9110 §9.1 allows any token and compares with case, but servers that fold case exist: to
 * them `delete` is `DELETE`, while no rule matches it as such. All registered methods have this form.
 */
export const METHOD = /^[A-Z][A-Z-]{0,31}$/;

export const isMethod = (text: string): boolean => METHOD.test(text);
