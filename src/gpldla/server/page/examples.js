// What a visitor without pictures or texts at hand can try the page with.

import { birdPicture } from "./birds.js";

const BIRDS = ["Robin", "Chaffinch", "Blue tit"]; // the first two are alike
const PICTURES = 4; // of each
const TRIED = [
  ["Kingfisher", 903], // of no class that is taught
  ["Robin", 901],
  ["Young chaffinch", 904], // like both of the first two
];

const MESSAGES = {
  Delivery: [
    "Where is my parcel? It should have come on Tuesday.",
    "The courier has not brought my package yet.",
    "The parcel arrived open and half empty.",
    "Can the package be delivered to my office instead?",
    "When will the shipment arrive?",
  ],
  Payment: [
    "My card was charged twice.",
    "When will the refund reach my bank account?",
    "Please send me the invoice for last month.",
    "Can I pay by bank transfer?",
    "The price on my bill is wrong.",
  ],
  Technical: [
    "The app closes as soon as I open it.",
    "I cannot log in after the update.",
    "The page stays white in my browser.",
    "The link to reset my password does not work.",
    "An error message comes up when I save.",
  ],
};
const MESSAGE = "My parcel never came, and I want my money back."; // delivery or payment?

/** How each kind's example is called, and how it is taught: with the lesson and the trials. */
export const EXAMPLES = {
  images: {
    name: "Try the bird example",
    title: "Birds",
    async teach(lesson, trials, add) {
      lesson.restart(BIRDS);
      await lesson.rename("Birds");
      await Promise.all(
        BIRDS.map(async (species, nth) => {
          const seeds = Array.from({ length: PICTURES }, (_, i) => 10 * nth + i + 1);
          const files = await Promise.all(seeds.map((seed) => birdPicture(species, seed)));
          await add(lesson.group(species), files.map((file) => ({ file })));
        }),
      );
      trials.clear();
      await trials.add(await Promise.all(TRIED.map((one) => birdPicture(...one))));
      trials.select(trials.items.at(-1));
    },
  },
  texts: {
    name: "Try the message example",
    title: "Messages",
    async teach(lesson, trials, add) {
      lesson.restart(Object.keys(MESSAGES));
      await lesson.rename("Messages");
      for (const [label, texts] of Object.entries(MESSAGES)) {
        await add(lesson.group(label), texts.map((text) => ({ text })));
      }
      await trials.write(MESSAGE);
    },
  },
};
