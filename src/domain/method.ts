/**
 * Methods are case-sensitive (RFC 9110 §9.1), but some servers ignore case: `delete` would bypass a rule for `DELETE`. All
 * registered methods have this form.
 */
export const FORWARDABLE_METHOD = /^[A-Z][A-Z-]{0,31}$/;

export const isForwardableMethod = (text: string): boolean => FORWARDABLE_METHOD.test(text);
