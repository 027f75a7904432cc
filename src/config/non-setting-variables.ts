/** Environment variables with our prefix that are not settings, and what they mean. Commands read only these. */
export const NON_SETTING_VARIABLES = {
  GATEHOUSE_CONFIG: 'the configuration file, if there is no `--config`',
  GATEHOUSE_CONFIG_YAML: 'the whole configuration, instead of a file',
  GATEHOUSE_HOME: 'the folder in which `gatehouse login` stores tokens (default: `~/.config/gatehouse`)',
  GATEHOUSE_PROFILE: 'the profile that `gatehouse token` and similar commands use, if there is no `--profile`',
  GATEHOUSE_TRACE: '`1` prints internal errors with their stack trace',
  GATEHOUSE_URL: '`--url` of `gatehouse token --service-account`',
  GATEHOUSE_CLIENT: '`--client` of `gatehouse token --service-account`',
  GATEHOUSE_SCOPE: '`--scope` of `gatehouse token --service-account`',
  GATEHOUSE_CACERT: '`--cacert` of `gatehouse token --service-account`',
  GATEHOUSE_TOKEN_FILE: '`--token-file` of `gatehouse token --service-account`',
} as const satisfies Readonly<Record<string, string>>;

export type NonSettingVariable = keyof typeof NON_SETTING_VARIABLES;
