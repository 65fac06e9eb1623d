// Texts as tokens, by the rules of a tokenizer.json of BERT's kind: words, and pieces of words.

const CHINESE = /[\u4E00-\u9FFF\u3400-\u4DBF\u{20000}-\u{2A6DF}\u{2A700}-\u{2B73F}\u{2B740}-\u{2B81F}\u{2B820}-\u{2CEAF}\uF900-\uFAFF\u{2F800}-\u{2FA1F}]/gu;
const PUNCTUATION = /([!-/:-@[-`{-~]|\p{P})/gu;

/** Return a function from a text to the numbers of its tokens. */
function makeTokenizer(rules) {
  const { vocab, unk_token: unknown, continuing_subword_prefix: prefix, max_input_chars_per_word: longest } = rules.model;
  const pieces = new Map(Object.entries(vocab));
  const ends = specialTokens(rules.post_processor, pieces);
  const most = (rules.truncation?.max_length ?? Infinity) - ends.before.length - ends.after.length;
  return (text) => {
    const words = normalised(text, rules.normalizer).replace(PUNCTUATION, " $1 ").split(/\s+/u).filter(Boolean);
    const numbers = words.flatMap((word) => wordPieces(word, pieces, prefix, longest) ?? [pieces.get(unknown)]);
    return [...ends.before, ...numbers.slice(0, most), ...ends.after];
  };
}

function normalised(text, { clean_text, handle_chinese_chars, strip_accents, lowercase }) {
  if (clean_text) text = text.replace(/[\t\n\r]/gu, " ").replace(/[\0\uFFFD]|\p{C}/gu, "").replace(/\s/gu, " ");
  if (handle_chinese_chars) text = text.replace(CHINESE, " $& ");
  if (strip_accents ?? lowercase) text = text.normalize("NFD").replace(/\p{Mn}/gu, "");
  return lowercase ? text.toLowerCase() : text;
}

/** The longest piece that is known, again and again; null if none fits. */
function wordPieces(word, pieces, prefix, longest) {
  const letters = [...word];
  if (letters.length > longest) return null;
  const found = [];
  for (let start = 0; start < letters.length; ) {
    let end = letters.length;
    let number;
    for (; end > start; end--) {
      number = pieces.get((start ? prefix : "") + letters.slice(start, end).join(""));
      if (number !== undefined) break;
    }
    if (number === undefined) return null;
    found.push(number);
    start = end;
  }
  return found;
}

/** The tokens before and after each text. */
function specialTokens(processor, pieces) {
  if (!processor) return { before: [], after: [] };
  if (processor.type === "BertProcessing") return { before: [processor.cls[1]], after: [processor.sep[1]] };
  const names = processor.single.map((part) => part.SpecialToken?.id ?? null);
  const middle = names.indexOf(null);
  const numbers = (some) => some.flatMap((name) => processor.special_tokens[name]?.ids ?? [pieces.get(name)]);
  return { before: numbers(names.slice(0, middle)), after: numbers(names.slice(middle + 1)) };
}
