"""Other libraries open a folder of MaBERT's and give what `mabert.load` gives; each where it is installed."""

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

import mabert
from mabert import MaBertForSequenceClassification, MaBertModel
from tests.model.helpers import saved
from tests.train.helpers import WORDS, tokenizer

TEXTS = [" ".join((WORDS * 2)[start : start + 3 + start % 5]) for start in range(24)]

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings of other libraries


SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    saved(MaBertModel, folder, tokenizer(), **SIZES)
    return str(folder)


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reranker")
    saved(MaBertForSequenceClassification, folder, tokenizer(), **SIZES, num_labels=1, pooling="cls")
    return str(folder)


def vectors(folder, texts=TEXTS, **options):
    return mabert.load(folder).embed(list(texts), progress=False, **options)


def close(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-5)


def test_keybert(encoder):
    keybert = pytest.importorskip("keybert", reason="KeyBERT is not installed")
    text = " ".join(WORDS[:12])
    found = keybert.KeyBERT(encoder).extract_keywords(text, stop_words=None, top_n=5)
    words = vectors(encoder, [word for word, _ in found], normalize=True)
    close([score for _, score in found], words @ vectors(encoder, [text], normalize=True)[0])


def test_setfit(encoder, tmp_path):
    setfit = pytest.importorskip("setfit", reason="SetFit is not installed")
    from datasets import Dataset

    model = setfit.SetFitModel.from_pretrained(encoder, device="cpu")
    rows = Dataset.from_dict({"text": TEXTS[:8], "label": [0, 1] * 4})
    arguments = setfit.TrainingArguments(str(tmp_path / "run"), max_steps=2, report_to="none", save_strategy="no")
    setfit.Trainer(model, arguments, train_dataset=rows).train()
    model.save_pretrained(str(tmp_path / "trained"))
    again = setfit.SetFitModel.from_pretrained(str(tmp_path / "trained"), device="cpu")
    ours = vectors(tmp_path / "trained")
    assert np.abs(ours - vectors(encoder)).max() > 1e-4, "it was trained"
    close(again.predict_proba(TEXTS), model.model_head.predict_proba(ours))


def test_bertopic(encoder):
    bertopic = pytest.importorskip("bertopic", reason="BERTopic is not installed")
    few = PCA(2, random_state=0), KMeans(3, random_state=0, n_init=1)
    model = bertopic.BERTopic(embedding_model=encoder, umap_model=few[0], hdbscan_model=few[1])
    topics, _ = model.fit_transform(TEXTS)
    given, _ = bertopic.BERTopic(umap_model=few[0], hdbscan_model=few[1]).fit_transform(TEXTS, vectors(encoder))
    assert topics == given
    assert len(set(topics)) == 3


def test_langchain(encoder):
    langchain = pytest.importorskip("langchain_huggingface", reason="langchain-huggingface is not installed")
    from langchain_core.vectorstores import InMemoryVectorStore

    model = langchain.HuggingFaceEmbeddings(model_name=encoder, model_kwargs={"device": "cpu"})
    close(model.embed_documents(TEXTS), vectors(encoder))
    store = InMemoryVectorStore.from_texts(TEXTS, model)
    assert store.similarity_search(TEXTS[5], k=1)[0].page_content == TEXTS[5]


def test_llama_index(encoder):
    llama = pytest.importorskip("llama_index.embeddings.huggingface", reason="LlamaIndex is not installed")
    from llama_index.core import VectorStoreIndex
    from llama_index.core.schema import TextNode

    model = llama.HuggingFaceEmbedding(encoder, device="cpu")
    close(model.get_text_embedding_batch(TEXTS), vectors(encoder, normalize=True))
    index = VectorStoreIndex([TextNode(text=text) for text in TEXTS], embed_model=model)
    assert index.as_retriever(similarity_top_k=1).retrieve(TEXTS[5])[0].text == TEXTS[5]


def test_haystack(encoder, reranker):
    reason = "sentence-transformers-haystack is not installed"
    place = "haystack_integrations.components"
    embedders = pytest.importorskip(f"{place}.embedders.sentence_transformers", reason=reason)
    rankers = pytest.importorskip(f"{place}.rankers.sentence_transformers", reason=reason)
    from haystack import Document

    model = embedders.SentenceTransformersDocumentEmbedder(model=encoder, progress_bar=False)
    documents = model.run([Document(content=text) for text in TEXTS])["documents"]
    close([document.embedding for document in documents], vectors(encoder))
    ranker = rankers.SentenceTransformersSimilarityRanker(model=reranker, scale_score=False)
    ranked = ranker.run(query="bird", documents=documents)["documents"]
    scores = mabert.load(reranker).predict(["bird"] * len(ranked), [each.content for each in ranked], progress=False)
    close([document.score for document in ranked], [score["score"] for score in scores])


def test_txtai(encoder):
    txtai = pytest.importorskip("txtai", reason="txtai is not installed")
    model = txtai.Embeddings(path=encoder, content=True)
    close(model.batchtransform(TEXTS), vectors(encoder, normalize=True))
    model.index(TEXTS)
    assert model.search(TEXTS[5], 1)[0]["text"] == TEXTS[5]


def test_infinity(encoder, reranker, monkeypatch):
    infinity = pytest.importorskip("infinity_emb", reason="infinity-emb is not installed")
    from fastapi.testclient import TestClient
    from infinity_emb.infinity_server import create_server

    monkeypatch.setenv("DO_NOT_TRACK", "1")
    served = [
        infinity.EngineArgs(model_name_or_path=folder, served_model_name=name, device="cpu", model_warmup=False)
        for folder, name in ((encoder, "encoder"), (reranker, "reranker"))
    ]
    with TestClient(create_server(engine_args_list=served)) as ask:
        found = ask.post("/embeddings", json={"model": "encoder", "input": TEXTS}).json()["data"]
        question = {"model": "reranker", "query": "bird", "documents": TEXTS, "raw_scores": True}
        ranked = ask.post("/rerank", json=question).json()["results"]
    close([each["embedding"] for each in found], vectors(encoder, normalize=True))
    scores = mabert.load(reranker).predict(["bird"] * len(TEXTS), TEXTS, progress=False)
    close([each["relevance_score"] for each in ranked], [scores[each["index"]]["score"] for each in ranked])
