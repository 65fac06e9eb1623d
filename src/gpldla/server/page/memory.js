// What outlives a reload: the tasks in use and what can be undone (localStorage), pictures to try (IndexedDB).

const KEY = "gpldla.page";
const DATABASE = "gpldla.page";
const STORE = "trials";

/** Return what is remembered under a name, or null. */
export function remembered(name) {
  try {
    return JSON.parse(localStorage.getItem(`${KEY}.${name}`));
  } catch {
    return null; // storage is switched off, or somebody else's text lies there
  }
}

/** Remember something that JSON can hold. */
export function remember(name, value) {
  try {
    localStorage.setItem(`${KEY}.${name}`, JSON.stringify(value));
  } catch {
    // Full or switched off: the page works, and a reload starts anew.
  }
}

/** Return the pictures to try of a kind, as [{name, file}]. */
export async function rememberedTrials(kind) {
  try {
    return (await inStore("readonly", (store) => store.get(kind))) ?? [];
  } catch {
    return [];
  }
}

/** Remember pictures to try. */
export async function rememberTrials(kind, trials) {
  try {
    await inStore("readwrite", (store) => store.put(trials, kind));
  } catch {
    // As above.
  }
}

function inStore(mode, act) {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open(DATABASE, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
    opening.onerror = () => reject(opening.error);
    opening.onsuccess = () => {
      const database = opening.result;
      const request = act(database.transaction(STORE, mode).objectStore(STORE));
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
      request.transaction.oncomplete = () => database.close();
    };
  });
}
