// JSON patches (RFC 6902) as findings bring them, and single values by JSON pointer.

function parts(pointer) {
  return pointer.split("/").slice(1).map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));
}

function walk(document, steps) {
  return steps.reduce((place, key) => (place === undefined || place === null ? undefined : place[key]), document);
}

export function valueAt(document, pointer) {
  return walk(document, parts(pointer));
}

/** Set a value, making the objects on the way; undefined takes it away. */
export function setAt(document, pointer, value) {
  const steps = parts(pointer);
  const last = steps.pop();
  const isObject = (place) => typeof place === "object" && place !== null;
  let place = document;
  for (const key of steps) {
    if (!isObject(place[key])) {
      if (value === undefined) return;
      place[key] = {};
    }
    place = place[key];
  }
  if (value === undefined) delete place[last];
  else if (Array.isArray(place) && last === "-") place.push(value);
  else place[last] = value;
}

export function apply(document, patch) {
  const result = structuredClone(document);
  for (const step of patch) {
    if (step.op === "move") {
      const value = valueAt(result, step.from);
      setAt(result, step.from, undefined);
      setAt(result, step.path, value);
    } else {
      setAt(result, step.path, step.op === "remove" ? undefined : step.value);
    }
  }
  return result;
}
