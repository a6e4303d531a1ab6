// Lets one client make its calls and prints what it finds, a line of JSON each:
// `node ask.mjs openai plain streamed` runs these calls of `openai.mjs`. The last line names every address other than
// loopback that the process wanted to reach.

import dns from 'node:dns';
import { isIP, Socket } from 'node:net';
import process from 'node:process';

const elsewhere = new Set();

function watch(host) {
  const isLoopback = !host || host === 'localhost' || host === '::1' || (isIP(host) === 4 && host.startsWith('127.'));
  if (!isLoopback) elsewhere.add(String(host));
}

const connect = Socket.prototype.connect;
Socket.prototype.connect = function connectWatched(...given) {
  const options = Array.isArray(given[0]) ? given[0][0] : given[0];
  watch(typeof options === 'object' ? options?.host : given[1]);
  return connect.apply(this, given);
};
const lookup = dns.lookup;
dns.lookup = (host, ...others) => {
  watch(host);
  return lookup(host, ...others);
};

/** What an error and its causes say, as a caller would find it in a log. */
function told(error) {
  const causes = [];
  for (let each = error; each && causes.length < 9; each = each.cause ?? each.lastError) {
    causes.push(`${each.name}: ${each.message} ${each.statusCode ?? ''} ${each.responseBody ?? ''}`);
  }
  return causes.join('\n');
}

const [client, ...names] = process.argv.slice(2);
const { calls } = await import(`./${client}.mjs`);
for (const call of names) {
  try {
    console.log(JSON.stringify({ call, found: await calls[call]() }));
  } catch (error) {
    console.log(JSON.stringify({ call, error: told(error) }));
  }
}
console.log(JSON.stringify({ elsewhere: [...elsewhere] }));
process.exit(0);
