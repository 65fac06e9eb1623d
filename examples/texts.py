"""Topics of short texts from four examples per topic, with abstaining where the expected error is too large.

    python examples/texts.py

Needs the extra: pip install 'gpldla[text]'. The texts were written for this example.
"""

from sklearn.pipeline import make_pipeline

from gpldla import AbstainingClassifier, GPLDLAClassifier, TextEmbedder

KNOWN = {
    "delivery": [
        "Where is my parcel?",
        "The package has not arrived yet.",
        "When will my order be shipped?",
        "The courier left it at the wrong house.",
    ],
    "billing": [
        "I was charged twice for one order.",
        "Please send me an invoice.",
        "My refund is still missing.",
        "The amount on my card is wrong.",
    ],
    "account": [
        "How do I reset my password?",
        "I cannot log in any more.",
        "Please change my e-mail address.",
        "Delete my account.",
    ],
}
NEW = [
    "My order has still not been delivered.",
    "You took money from me two times.",
    "The login page does not accept my password.",
    "What is the capital of France?",
]

texts = [text for examples in KNOWN.values() for text in examples]
topics = [topic for topic, examples in KNOWN.items() for _ in examples]

classifier = make_pipeline(TextEmbedder(), GPLDLAClassifier()).fit(texts, topics)
abstaining = AbstainingClassifier(classifier, max_error=0.2, abstain_label="ask a person")
features = classifier[:-1].transform(NEW)
for text, answer, p, none in zip(
    NEW, abstaining.predict(NEW), classifier.predict_proba(NEW), classifier[-1].none_of_these(features)
):
    shown = "  ".join(f"{topic} {value:.2f}" for topic, value in zip(classifier.classes_, p))
    print(f"{text}\n    {answer}   ({shown}; none of these: {none:.2f})")
