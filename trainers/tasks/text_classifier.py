"""`TextClassifier`: words that look at one another, a mean of them, and a score for each class."""

from torch import Tensor, nn

D_MODEL, HEADS, DROPOUT = 64, 4, 0.3


class TextClassifier(nn.Module):
    """Texts of uneven lengths: what pads them is seen by no word, and is no part of the mean."""

    def __init__(self, vocabulary: int, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, D_MODEL, padding_idx=0)
        self.dropout = nn.Dropout(DROPOUT)
        self.norm = nn.LayerNorm(D_MODEL)
        self.attention = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True)
        self.head = nn.Linear(D_MODEL, num_classes)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Scores, (batch, num_classes).

        words: (batch, longest) int64, below the vocabulary. mask: the same shape, True where there is a word.
        """
        stream = self.dropout(self.embedding(words))
        normed = self.norm(stream)
        read, _ = self.attention(normed, normed, normed, key_padding_mask=~mask, need_weights=False)
        weights = mask.unsqueeze(2).to(stream.dtype)
        mean = ((stream + read) * weights).sum(dim=1) / weights.sum(dim=1)
        scores: Tensor = self.head(self.dropout(mean))
        return scores
