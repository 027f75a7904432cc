import { renderJsonSchema } from '../config/known-settings.ts';
import { type Command } from './command.ts';

export const command: Command = {
  name: 'schema',
  summary: 'prints the JSON Schema of the configuration',
  usage: ['gatehouse schema > gatehouse.schema.json'],
  options: {},
  notes: ['For editors and generated configurations. `gatehouse check` also validates what a schema cannot express.'],
  async run({ stdout }) {
    stdout(renderJsonSchema());
  },
};
